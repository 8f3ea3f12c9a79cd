package report

import (
	"fmt"

	"lockstep/train/runlog"
)

// rankRow is a rank of a run, over the steps that were logged.
type rankRow struct {
	Rank                               int
	Rows                               string // of training
	Busy, Waited, Memory, Watts, Share string // "": not known
}

// Ranks is what each of several ranks did; nil where the run has one.
func (p *runData) Ranks() (list []rankRow) {
	var by [][]runlog.RankRecord
	for _, rec := range p.Log {
		for i, r := range rec.Ranks {
			if i == len(by) {
				by = append(by, nil)
			}
			by[i] = append(by[i], r)
		}
	}
	for i, records := range by {
		list = append(list, summarised(i, records))
	}
	return list
}

// summarised is sums over the records, means of shares and power, and the largest memory and share of experts' rows.
func summarised(rank int, records []runlog.RankRecord) rankRow {
	rows, memory, watts, busy, waited, share, n := 0, int64(0), 0.0, 0.0, 0.0, 0.0, float64(len(records))
	for _, r := range records {
		rows += r.Rows
		memory = max(memory, r.Memory)
		busy += float64(r.Busy) / n
		waited += float64(r.Waited) / n
		if r.Watts != nil {
			watts += float64(*r.Watts) / n
		}
		if r.ExpertShare != nil {
			share = max(share, float64(*r.ExpertShare))
		}
	}
	row := rankRow{Rank: rank, Rows: count(rows), Busy: percent(busy), Waited: fmt.Sprintf("%.3f s", waited),
		Memory: fmt.Sprintf("%d MiB", memory>>20)}
	if watts > 0 {
		row.Watts = fmt.Sprintf("%.0f W", watts)
	}
	if share > 0 {
		row.Share = percent(share)
	}
	return row
}
