// Package report draws runs: curves over steps, headline numbers, what differs between runs, sampled answers. The
// result is one HTML page, or one SVG picture, that needs no other file and no scripts.
//
// A [Report] is read from the folders of runs alone, finished or not; see train/runlog for their files. Runs whose
// shapes differ in seeds alone form one series: their mean, in a band from the lowest to the highest.
//
// It imports configs, data and train/runlog.
package report
