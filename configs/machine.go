package configs

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
)

// machines holds a machine in each file.
//
//go:embed machines/*.toml
var machines embed.FS

const machinesDir = "machines/"

// Machines lists the names of the machines that come with Lockstep, sorted.
func Machines() (names []string) {
	files, err := machines.ReadDir(strings.TrimSuffix(machinesDir, "/"))
	if err != nil {
		panic(err) // it is embedded
	}
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), ".toml"))
	}
	return names
}

// LoadMachine reads a machine by its name, or from a file whose name ends in .toml.
func LoadMachine(name string) (Machine, error) {
	if !strings.HasSuffix(name, ".toml") {
		text, err := machines.ReadFile(machinesDir + name + ".toml")
		if err != nil {
			return Machine{}, fmt.Errorf("machine %q: there are %s; lockstep bench machine --out FILE.toml measures "+
				"this one", name, strings.Join(Machines(), ", "))
		}
		return ParseMachine(name, text)
	}
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return Machine{}, fmt.Errorf("%s is not a regular file: give the path of a machine (.toml)", name)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return Machine{}, fmt.Errorf("%w: give the path of a machine (.toml)", err)
	}
	return ParseMachine(name, text)
}

// ParseMachine reads a machine; name is the file's in errors. Every key has to be there, and every rate above 0. Links
// may be left out where there is one card, and the host's of a CPU.
func ParseMachine(name string, text []byte) (m Machine, err error) {
	meta, err := toml.Decode(string(text), &m)
	if err != nil {
		return m, syntaxError(name, err)
	}
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: "+format, append([]any{name}, args...)...))
	}
	for _, key := range meta.Undecoded() {
		fault("%s: unknown key%s", key, didYouMean(key.String(), machineKeys()))
	}
	var missing []string
	for _, key := range machineKeys() {
		_, _, inTable := strings.Cut(key, ".")
		optional := key == "assumed" || m.without(key)
		v := m.value(key)
		switch {
		case !meta.IsDefined(strings.Split(key, ".")...):
			if !optional {
				missing = append(missing, key)
			}
		case m.without(key): // whatever it is
		case v.Kind() == reflect.String && v.String() == "", v.Kind() == reflect.Int && v.Int() < 1,
			inTable && !(v.Float() > 0) && key != "memory.workspace", inTable && !(v.Float() >= 0):
			fault("%s is %v, want more", key, v.Interface())
		}
	}
	switch n := len(missing); {
	case n == 1:
		fault("%s is missing: lockstep bench machine measures it", missing[0])
	case n > 1:
		fault("%d keys are missing, %s and %s first: lockstep bench machine measures them", n, missing[0], missing[1])
	}
	if len(faults) == 0 && m.Device != "cpu" && m.Device != "cuda" {
		fault("device is %q, want cpu or cuda", m.Device)
	}
	return m, errors.Join(faults[:min(len(faults), mostFaults)]...)
}

// without tells whether a machine has no use for a key: links of one card, and the host's links of a CPU.
func (m Machine) without(key string) bool {
	table, _, _ := strings.Cut(key, ".")
	return (table == "links" || key == "share.slowest") && m.Cards == 1 || table == "host" && m.Device == "cpu"
}

// mostFaults are told of a machine.
const mostFaults = 5

func didYouMean(key string, known []string) string {
	if near := Nearest(key, known); near != "" {
		return ", did you mean " + near + "?"
	}
	return ""
}

// machineKeys lists the keys of a machine file in the order of the struct.
func machineKeys() (keys []string) {
	eachMachineKey(func(key, _ string, table bool, _ []int) {
		if !table {
			keys = append(keys, key)
		}
	})
	return keys
}

// eachMachineKey visits the keys and tables.
func eachMachineKey(visit func(key, doc string, table bool, index []int)) {
	top := reflect.TypeFor[Machine]()
	for i := range top.NumField() {
		f := top.Field(i)
		key, table := f.Tag.Get("toml"), f.Type.Kind() == reflect.Struct
		visit(key, fieldDocs[top.Name()+"."+f.Name], table, []int{i})
		for j := 0; table && j < f.Type.NumField(); j++ {
			below := f.Type.Field(j)
			visit(key+"."+below.Tag.Get("toml"), fieldDocs[f.Type.Name()+"."+below.Name], false, []int{i, j})
		}
	}
}

func (m *Machine) value(of string) (v reflect.Value) {
	eachMachineKey(func(key, _ string, _ bool, index []int) {
		if key == of {
			v = reflect.ValueOf(m).Elem().FieldByIndex(index)
		}
	})
	return v
}

// TOML is the machine's file, with what each key means.
func (m Machine) TOML() []byte {
	var b bytes.Buffer
	eachMachineKey(func(key, doc string, table bool, index []int) {
		v := reflect.ValueOf(m).FieldByIndex(index)
		_, name, below := strings.Cut(key, ".")
		if !below {
			name = key
		}
		switch {
		case m.without(key):
		case table:
			fmt.Fprintf(&b, "\n[%s] # %s\n", key, doc)
		case doc == "" || v.Kind() == reflect.Slice:
			fmt.Fprintf(&b, "%s = %s\n", name, literal(v.Interface()))
		default:
			fmt.Fprintf(&b, "%-31s # %s\n", name+" = "+literal(v.Interface()), doc)
		}
	})
	return b.Bytes()
}

// Note says what of the machine's rates was not measured on it; "": all was.
func (m Machine) Note() string {
	switch {
	case !m.Measured:
		return "unmeasured: rates of " + m.Name + " are from data sheets (" + m.How + ")"
	case len(m.Assumed) > 0:
		return "not measured on " + m.Name + ": " + strings.Join(m.Assumed, "; ")
	}
	return ""
}

// MachineOf is the machine that comes with Lockstep whose cards a device's name tells, the one with fewest cards that
// has so many; ok is false where none does.
func MachineOf(device string, cards int) (m Machine, ok bool) {
	for _, name := range Machines() {
		of, err := LoadMachine(name)
		if err != nil {
			panic(err) // a test reads them all
		}
		if strings.Contains(device, of.Card) && of.Cards >= cards && (!ok || of.Cards < m.Cards) {
			m, ok = of, true
		}
	}
	return m, ok
}

// Larger lists machines of the same card with more of them, fewest first.
func (m Machine) Larger() (list []Machine) {
	for _, name := range Machines() {
		of, err := LoadMachine(name)
		if err != nil {
			panic(err) // a test reads them all
		}
		if of.Card == m.Card && of.Cards > m.Cards {
			list = append(list, of)
		}
	}
	slices.SortFunc(list, func(a, b Machine) int { return a.Cards - b.Cards })
	return list
}

// Round rounds all numbers to four digits.
func (m *Machine) Round() {
	eachMachineKey(func(_, _ string, table bool, index []int) {
		v := reflect.ValueOf(m).Elem().FieldByIndex(index)
		if table || v.Kind() != reflect.Float64 {
			return
		}
		x, err := strconv.ParseFloat(strconv.FormatFloat(v.Float(), 'g', 4, 64), 64)
		if err != nil {
			panic(err) // it was a number
		}
		v.SetFloat(x)
	})
}
