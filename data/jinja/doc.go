// Package jinja renders chat templates: the part of Jinja 2 that they use, with the settings and additions of
// transformers (trim_blocks, lstrip_blocks, loop controls, {% generation %}, raise_exception, strftime_now, tojson as
// json.dumps, the immutable sandbox). A template renders to exactly the bytes that Python makes of it, or to an error:
// what is not supported is refused by name. Rendering is bounded in steps, depth and size whatever the template does.
// Of the project the package imports data/ordered alone.
//
// Values are nil (None), bool, int64, float64, string, []any (a list), tuple, *[ordered.Dict], and functions.
package jinja
