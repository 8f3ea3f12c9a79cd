package configs

import (
	"slices"
	"strings"
)

// longestName is far above any that could be a known one misspelt: comparing takes time and memory by the product.
const longestName = 100

// unknown is the message for a key that the schema lacks.
func unknown(key string) string {
	best, score := "", 1+max(2, len(key)/4)
	if len(key) > longestName {
		return "unknown key, remove it"
	}
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
	if len(name) > longestName {
		return ""
	}
	for _, k := range known {
		if d := distance(name, k); d < score {
			best, score = k, d
		}
	}
	return best
}

// Misspelt is the known name that a name of words between underscores is but for one or two letters of one word of four
// or more; "" where it is known itself or none is so near.
func Misspelt(name string, known []string) string {
	if slices.Contains(known, name) {
		return ""
	}
	words := strings.Split(name, "_")
	i := slices.IndexFunc(known, func(k string) bool {
		others, wrong := strings.Split(k, "_"), 0
		if len(others) != len(words) {
			return false
		}
		for i, w := range words {
			switch {
			case w == others[i]:
			case min(len(w), len(others[i])) < 4 || distance(w, others[i]) > 2:
				return false
			default:
				wrong++
			}
		}
		return wrong == 1
	})
	if i < 0 {
		return ""
	}
	return known[i]
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
