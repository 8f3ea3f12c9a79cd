package bench

import (
	"fmt"
	"io"
	"strings"

	"lockstep/parallel/schedule"
	"lockstep/train/trainer"
)

// pipelineTimes is what the micro-batches of a step take, in seconds.
type pipelineTimes struct {
	took     float64 // from a rank's first task to its last
	computed float64 // by tasks alone, mean of the ranks
	even     float64 // by the schedule, if tasks of all stages took their mean
	uneven   float64 // by the schedule, with the times that tasks of each stage take
	tasks    string  // what those are
}

// timesOf are those of so many steps by a schedule of this name, whose ranks have so many chunks.
func timesOf(name string, chunks, steps int, ranks [][]trainer.TaskTime) (p pipelineTimes) {
	s := schedule.Schedule{Name: name, Chunks: chunks, Ranks: make([][]schedule.Task, len(ranks))}
	stages, all := make([]kindTimes, chunks*len(ranks)), kindTimes{}
	for rank, list := range ranks {
		took, each := 0.0, len(list)/steps
		for i, t := range list {
			stages[t.Chunk*len(ranks)+rank].add(t)
			all.add(t)
			p.computed += (t.To - t.Ready) / float64(steps*len(ranks))
			if i < each {
				s.Ranks[rank], s.Micros = append(s.Ranks[rank], t.Task), max(s.Micros, t.Micro+1)
			}
			if i%each == each-1 {
				took += (t.To - list[i+1-each].From) / float64(steps)
			}
		}
		p.took = max(p.took, took)
	}
	var costs schedule.Costs
	for _, k := range stages {
		costs = append(costs, k.mean())
	}
	p.tasks = spelled(costs)
	seconds := func(c schedule.Costs) float64 {
		_, end := s.Times(c)
		return float64(end) / nanoseconds
	}
	p.even, p.uneven = seconds(schedule.Costs{all.mean()}), seconds(costs)
	return p
}

// kindTimes are the seconds and the number of tasks, by kind.
type kindTimes [3]struct{ seconds, tasks float64 }

func (k *kindTimes) add(t trainer.TaskTime) {
	k[t.Kind].seconds += t.To - t.Ready
	k[t.Kind].tasks++
}

const nanoseconds = 1e9

// mean is what a task of each kind takes, in nanoseconds.
func (k kindTimes) mean() schedule.Cost {
	of := func(kind schedule.Kind) int { return int(nanoseconds * k[kind].seconds / max(k[kind].tasks, 1)) }
	return schedule.Cost{Forward: of(schedule.Forward), Backward: of(schedule.Backward), Weights: of(schedule.Weights)}
}

// spelled is the milliseconds of tasks of each stage: forward, backward and, where they are put off, of weights.
func spelled(costs schedule.Costs) string {
	var list []string
	for _, c := range costs {
		text := fmt.Sprintf("%.2f + %.2f", float64(c.Forward)/1e6, float64(c.Backward)/1e6)
		if c.Weights > 0 {
			text += fmt.Sprintf(" + %.2f", float64(c.Weights)/1e6)
		}
		list = append(list, text)
	}
	return strings.Join(list, ", ")
}

// printBubble adds rows of a pipeline: what is missing to as many times the speed of one rank, as a share of the ranks'
// time, next to the schedule's bubble; and where it goes:
//
//	schedule  ranks wait by the schedule, if tasks of all stages took their mean
//	stages    more than that, as they do not
//	rows      more than that: for rows that are on their way, or have not been asked for
//	work      tasks, update and pauses between steps take longer than on one rank
func (m onMesh) printBubble(tab io.Writer, one onMesh) {
	if m.ranks.Stages < 2 {
		return
	}
	left := 1 - m.train/one.train/float64(m.ranks.Ranks)
	fmt.Fprintf(tab, "\t%.3f\t%.3f\t  missing to %d times one rank; in place of a ratio the schedule's bubble, of %d "+
		"micro-batches\n", left, m.bubble, m.ranks.Ranks, m.micros)
	p := m.times
	for _, part := range []struct {
		seconds float64
		what    string
	}{{p.even - p.computed, "the schedule's, by times of tasks"},
		{p.uneven - p.even, "as stages are longer than others"}, {p.took - p.uneven, "as rows come late"}} {
		fmt.Fprintf(tab, "\t%.3f\t\t    %s\n", part.seconds/m.step, part.what)
		left -= part.seconds / m.step
	}
	fmt.Fprintf(tab, "\t%.3f\t\t    as tasks, update and pauses take longer than on one rank\n", left)
	fmt.Fprintf(tab, "\t\t\t    tasks of each stage take %s ms\n", p.tasks)
}
