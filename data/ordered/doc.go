// Package ordered reads JSON into values that keep the order of an object's keys: chat templates print tool definitions
// and arguments in that order. Values are nil, bool, int64, float64, string, []any and *[Dict]. The package imports the
// standard library.
package ordered
