package runlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"time"
)

// events is a TensorBoard log: TFRecords of Event messages (tensorflow/core/util/event.proto), encoded by hand.
type events struct{ file *os.File }

// newEvents starts a file. TensorBoard reads all files of a folder in the order of their names, so each start of a run
// has one of its own, and its first events tell it to forget what earlier files say of the steps after step.
func newEvents(dir string, step int, now time.Time) (*events, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	name := fmt.Sprintf("events.out.tfevents.%010d.%s.%d.%d", now.Unix(), host, os.Getpid(), now.Nanosecond())
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	e := &events{f}
	if step > 0 {
		step++ // the first to forget
	}
	start := varintField(nil, 1, 1) // SessionLog.status = START
	err = errors.Join(
		e.put(event(now, 0, stringField(3, []byte("brain.Event:2")))), // file_version
		e.put(event(now, step, stringField(7, start))))                // session_log
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return e, nil
}

// write appends a record's scalars as one Summary.
func (e *events) write(r Record) error {
	var summary []byte
	for _, s := range r.scalars() {
		value := stringField(1, []byte(s.tag))              // Value.tag
		value = floatField(value, 2, s.value)               // Value.simple_value
		summary = append(summary, stringField(1, value)...) // Summary.value
	}
	return e.put(event(r.Time, r.Step, stringField(5, summary)))
}

func (e *events) close() error { return errors.Join(e.file.Sync(), e.file.Close()) }

// event is an Event of wall_time (seconds), step and one more encoded field.
func event(at time.Time, step int, what []byte) []byte {
	b := []byte{1<<3 | 1} // wall_time, fixed 64
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(at.UnixNano())/1e9))
	b = varintField(b, 2, uint64(step))
	return append(b, what...)
}

func varintField(b []byte, field int, v uint64) []byte {
	return binary.AppendUvarint(append(b, byte(field<<3)), v)
}

func floatField(b []byte, field int, x float64) []byte {
	return binary.LittleEndian.AppendUint32(append(b, byte(field<<3|5)), math.Float32bits(float32(x)))
}

func stringField(field int, content []byte) []byte {
	b := binary.AppendUvarint([]byte{byte(field<<3 | 2)}, uint64(len(content)))
	return append(b, content...)
}

// put writes a TFRecord: length, its checksum, data, its checksum.
func (e *events) put(data []byte) error {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(data)))
	b = binary.LittleEndian.AppendUint32(b, maskedCRC(b))
	b = append(b, data...)
	b = binary.LittleEndian.AppendUint32(b, maskedCRC(data))
	if _, err := e.file.Write(b); err != nil {
		return fmt.Errorf("events: %w", err)
	}
	return nil
}

// maskedCRC is CRC-32C rotated and offset, so that checksums of data that hold checksums stay good
// (tsl/lib/hash/crc32c.h).
func maskedCRC(data []byte) uint32 {
	c := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
	return (c>>15 | c<<17) + 0xa282ead8
}
