package configs

import (
	"slices"
	"strings"
)

// unknown is the message for a key that the schema lacks.
func unknown(key string) string {
	best, score := "", 1+max(2, len(key)/4)
	for _, f := range schema {
		d := distance(key, f.key)
		if last := key[strings.LastIndexByte(key, '.')+1:]; last == f.name() && !f.table() {
			d = min(d, 1) // a known key in the wrong table
		}
		if d < score {
			best, score = f.key, d
		}
	}
	if best == "" {
		return "unknown key, remove it"
	}
	return "unknown key, did you mean " + best + "?"
}

// Nearest is the known name that a wrong one probably means; "" where none is like it.
func Nearest(name string, known []string) string {
	best, score := "", 1+max(2, len(name)/4)
	for _, k := range known {
		if d := distance(name, k); d < score {
			best, score = k, d
		}
	}
	return best
}

// Misspelt is the known name that a name is but for one letter or two; "" where it is known itself or none is so near.
func Misspelt(name string, known []string) string {
	if slices.Contains(known, name) {
		return ""
	}
	best, score := "", 3
	for _, k := range known {
		if d := distance(name, k); d < score && len(k) > 4 {
			best, score = k, d
		}
	}
	return best
}

// distance is the number of letters to insert, delete or replace (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1) // distances of a[:i] to every b[:j]
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = slices.Min([]int{replace, row[j] + 1, row[j+1] + 1})
		}
	}
	return row[len(b)]
}
