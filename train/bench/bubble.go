package bench

import (
	"fmt"
	"io"
	"strings"

	"lockstep/parallel/schedule"
	"lockstep/train/trainer"
)

// stepTimes is what a step takes by its devices' clocks, in seconds, the mean over steps: the micro-batches of the rank
// that has them last, and behind them the update of the rank that waits for no other.
type stepTimes struct{ micros, update float64 }

func stepTimesOf(ranks []trainer.RankTimes, steps int) (m stepTimes) {
	m.micros, m.update = trainer.MeanStep(ranks, steps)
	return m
}

// pipelineTimes is what the micro-batches of a step take, in seconds.
type pipelineTimes struct {
	took     float64 // from a rank's first task to its last
	computed float64 // by tasks alone, mean of the ranks
	between  float64 // tasks, while the device has nothing to do and waits for nothing: for its host. Mean of the ranks
	even     float64 // by the schedule, if tasks of all stages took their mean
	uneven   float64 // by the schedule, with the times that tasks of each stage take
	tasks    string  // what those are
}

// timesOf are those of so many steps by a schedule of this name, whose ranks have so many chunks.
func timesOf(name string, chunks, steps int, ranks []trainer.RankTimes) (p pipelineTimes) {
	s := schedule.Schedule{Name: name, Chunks: chunks, Ranks: make([][]schedule.Task, len(ranks))}
	stages, all := make([]kindTimes, chunks*len(ranks)), kindTimes{}
	mean := 1 / float64(steps*len(ranks))
	for rank, of := range ranks {
		list := of.Tasks
		took, each := 0.0, len(list)/steps
		for i, t := range list {
			stages[t.Chunk*len(ranks)+rank].add(t)
			all.add(t)
			p.computed += (t.To - t.Ready) * mean
			if i < each {
				s.Ranks[rank], s.Micros = append(s.Ranks[rank], t.Task), max(s.Micros, t.Micro+1)
			}
			if i%each > 0 {
				p.between += (t.From - list[i-1].To) * mean
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
//	host      between tasks, for which the device waits
//	work      tasks take longer than the micro-batches of one rank, copies of what is put off among them
//	update    likewise
//	pauses    behind the update, until the first task of the next step
func (m onMesh) printBubble(tab io.Writer, one onMesh) {
	if m.ranks.Stages < 2 {
		return
	}
	share := 1 / float64(m.ranks.Ranks)
	left := 1 - m.train/one.train*share
	fmt.Fprintf(tab, "\t%.3f\t%.3f\t  missing to %d times one rank; in place of a ratio the schedule's bubble, of %d "+
		"micro-batches\n", left, m.bubble, m.ranks.Ranks, m.micros)
	p := m.pipeline
	for _, part := range []struct {
		seconds float64
		what    string
	}{{p.even - p.computed, "the schedule's, by times of tasks"},
		{p.uneven - p.even, "as stages are longer than others"},
		{p.took - p.uneven - p.between, "as rows come late"},
		{p.between, "as a host comes late between two tasks"},
		{p.computed - one.times.micros*share, "as tasks take longer than on one rank"},
		{m.times.update - one.times.update*share, "as the update takes longer"}} {
		fmt.Fprintf(tab, "\t%.3f\t\t    %s\n", part.seconds/m.step, part.what)
		left -= part.seconds / m.step
	}
	fmt.Fprintf(tab, "\t%.3f\t\t    as pauses between steps do\n", left)
	fmt.Fprintf(tab, "\t\t\t    tasks of each stage take %s ms\n", p.tasks)
}

// printStep adds a row of what a step takes.
func (m onMesh) printStep(tab io.Writer, who string) {
	ms := func(seconds float64) string { return fmt.Sprintf("%.2f", 1e3*seconds) }
	fmt.Fprintf(tab, "\t\t\t  a step of %s takes %s ms: micro-batches %s, update %s, the pause behind it %s\n", who,
		ms(m.step), ms(m.times.micros), ms(m.times.update), ms(m.step-m.times.micros-m.times.update))
}
