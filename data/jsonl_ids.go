package data

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"lockstep/data/ordered"
)

// ignoredLabel is the label of a token that is not learned, in files (PyTorch's ignore_index).
const ignoredLabel = -100

// idsLine reads token ids as they are. labels[i] is what should stand at place i, usually ids[i], or -100; a loss_mask
// of 1 and 0 (or true and false) says the same.
func (b *builder) idsLine(d *ordered.Dict) error {
	v, _ := d.Get("ids")
	ids, err := readInts("ids", v)
	if err != nil {
		return err
	}
	labels, hasLabels := d.Get("labels")
	mask, hasMask := d.Get("loss_mask")
	q := sequence{ids: ids, labels: ids}
	switch {
	case hasLabels && hasMask:
		return errors.New("there are both labels and loss_mask, give one")
	case hasLabels:
		q.labels, err = readLabels(labels)
	case hasMask:
		q.labels, err = readMask(mask, ids)
	}
	if err != nil {
		return err
	}
	weights, hasWeights := d.Get("weights")
	switch {
	case !hasWeights || weights == nil:
	case hasMask:
		return errors.New("there are both weights and loss_mask, give one")
	default:
		if err := q.weigh(weights); err != nil {
			return err
		}
	}
	if len(q.labels) != len(q.ids) {
		return fmt.Errorf("there are %d ids and %d labels or loss_mask, give one for each id", len(q.ids),
			len(q.labels))
	}
	return b.add(q)
}

// weigh gives labels weights of their own. Where all are 0 or 1 the sequence is what a mask makes of it.
func (q *sequence) weigh(v any) error {
	list, ok := v.([]any)
	if !ok || len(list) != len(q.ids) || len(q.labels) != len(q.ids) {
		return errors.New("weights is not a list as long as ids, give a number for each id")
	}
	weights, labels, plain := make([]float32, len(list)), slices.Clone(q.labels), true
	for i, x := range list {
		switch x := x.(type) {
		case float64:
			weights[i] = float32(x)
		case int64:
			weights[i] = float32(x)
		default:
			weights[i] = -1
		}
		w := weights[i]
		if !(w >= 0) || math.IsInf(float64(w), 0) {
			return fmt.Errorf("weights[%d] is not a number of at least 0 that fp32 holds, give one", i)
		}
		if w == 0 {
			labels[i] = noLabel
		}
		plain = plain && (w == 0 || w == 1)
	}
	if q.labels = labels; !plain {
		q.weights = weights
	}
	return nil
}

// readInts reads a list of int32.
func readInts(key string, v any) ([]int32, error) {
	list, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("%s is not a list, give a list of integers", key)
	}
	ints := make([]int32, len(list))
	for i, x := range list {
		n, ok := x.(int64)
		if !ok || n < math.MinInt32 || n > math.MaxInt32 {
			return nil, fmt.Errorf("%s[%d] is not an integer of 32 bits, give token ids", key, i)
		}
		ints[i] = int32(n)
	}
	return ints, nil
}

func readLabels(v any) ([]int32, error) {
	labels, err := readInts("labels", v)
	for i, l := range labels {
		switch {
		case l == ignoredLabel:
			labels[i] = noLabel
		case l < 0:
			return nil, fmt.Errorf("labels[%d] is %d, use -100 for ignored positions", i, l)
		}
	}
	return labels, err
}

func readMask(v any, ids []int32) ([]int32, error) {
	list, ok := v.([]any)
	if !ok || len(list) != len(ids) {
		return nil, errors.New("loss_mask is not a list as long as ids, give a 0 or 1 for each id")
	}
	labels := make([]int32, len(list))
	for i, x := range list {
		switch x {
		case true, int64(1):
			labels[i] = ids[i]
		case false, int64(0):
			labels[i] = noLabel
		default:
			return nil, fmt.Errorf("loss_mask[%d] is neither 0 nor 1, make it one", i)
		}
	}
	return labels, nil
}
