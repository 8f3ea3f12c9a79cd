package configs

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// Machines that come with Lockstep are whole, called as their files, and printed and read back without loss.
func TestMachines(t *testing.T) {
	for _, name := range Machines() {
		m, err := LoadMachine(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if m.Name != name {
			t.Errorf("%s calls itself %s", name, m.Name)
		}
		again, err := ParseMachine("again.toml", m.TOML())
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Errorf("%s printed and read: %+v, %v", name, again, err)
		}
		if strings.Contains(name, "B200") != strings.HasPrefix(m.Note(), "unmeasured: ") {
			t.Errorf("%s: note %q", name, m.Note())
		}
	}
	m, ok := MachineOf("cuda (NVIDIA H200; equal to the definition)", 2)
	if !ok || m.Name != "2xH200" {
		t.Errorf("two H200s are %v %s", ok, m.Name)
	}
	if m, ok := MachineOf("cpu (avx512, 2 threads)", 1); ok {
		t.Errorf("a CPU is %s", m.Name)
	}
	if larger := m.Larger(); len(larger) != 1 || larger[0].Name != "8xH200" {
		t.Errorf("more H200s than two: %+v", larger)
	}
}

func TestMachineFaults(t *testing.T) {
	good, err := LoadMachine("2xH200")
	if err != nil {
		t.Fatal(err)
	}
	text := string(good.TOML())
	change := func(old, new string) string {
		if !strings.Contains(text, old) {
			t.Fatalf("%q is not in\n%s", old, text)
		}
		return strings.Replace(text, old, new, 1)
	}
	for _, c := range []struct{ text, want string }{
		{change("dense = 670.0", "#"), "m.toml: rates.dense is missing: lockstep bench machine measures it"},
		{change("dense = 670.0", "dense = 0.0"), "m.toml: rates.dense is 0, want more"},
		{change("dense = 670.0", "dense = nan"), "m.toml: rates.dense is NaN, want more"},
		{change("dense = 670.0", "dense = 670.0\ndens = 1.0"),
			"m.toml: rates.dens: unknown key, did you mean rates.dense?"},
		{change("[links]", "[lonks]"), "m.toml: lonks: unknown key"},
		{change("\"cuda\"", "\"tpu\""), `m.toml: device is "tpu", want cpu or cuda`},
		{change("cards = 2", "cards = 0"), "m.toml: cards is 0, want more"},
		{"name = ", "m.toml:1: "},
	} {
		path := filepath.Join(t.TempDir(), "m.toml")
		if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := LoadMachine(path)
		if err == nil {
			t.Errorf("accepted, want %q", c.want)
			continue
		}
		if got := strings.ReplaceAll(err.Error(), path, "m.toml"); !strings.HasPrefix(got, c.want) {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	if _, err := ParseMachine("m", []byte(change("cards = 2", "cards = 1"))); err != nil {
		t.Error(err)
	}
	if _, err := LoadMachine("9xH200"); err == nil || !strings.Contains(err.Error(), "8xH200") {
		t.Errorf("a machine that there is not: %v", err)
	}
	if _, err := LoadMachine("nowhere.toml"); err == nil {
		t.Error("a file that there is not is read")
	}
}
