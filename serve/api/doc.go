// Package api is the HTTP server over the rollout engine. It follows OpenAI's interface for completions and chat
// completions, with streaming, and takes and returns token ids for clients that train on what they sample. Requests of
// all clients run in one batch. A response depends on the request, the weights and the seed alone, on every bit.
//
// A request with an unknown or unsupported field is rejected; no field is dropped silently.
//
// Each endpoint is a file: its handler, the parsing of its fields, and its response. Handler lists the routes. Fields
// that completions and chat completions share are in sampling_request.go. The package imports serve, data, parallel and
// kernels.
package api
