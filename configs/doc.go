// Package configs is what a user may ask of a run: the typed schema of a shape (a TOML file), its defaults, its checks
// and its printed form, and the shapes that come with Lockstep. It imports nothing of the project; only main and train
// import it.
package configs
