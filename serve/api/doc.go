// Package api is the HTTP server over the rollout engine: completions and chat completions as OpenAI's interface has
// them, with streams, and tokens in and out for those who train on what they sample. Requests of all clients run in one
// batch; what a request gets depends on nothing but itself, its weights and its seed, on every bit.
//
// A request says all that it wants or is refused: a field that the server does not know, or knows and has no means for,
// is an error and is never passed over in silence. The package imports serve, data, parallel and kernels.
package api
