package cpu

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// machine writes a system's files under a folder.
func machine(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir() + "/"
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(root+name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(root+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const (
	mib      = 1 << 20
	meminfo8 = "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n" // 8 GiB
	mountV2  = "30 1 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	mountV1  = "33 32 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n36 32 0:31 %s /sys/fs/cgroup/memory rw - " +
		"cgroup cgroup rw,memory\n"
)

func bytesOf(n int) string { return fmt.Sprintf("%d\n", n) }

// The least of what the system has left and of what each enclosing group allows, in both versions.
func TestAvailableInGroups(t *testing.T) {
	v2, v1 := "sys/fs/cgroup/", "sys/fs/cgroup/memory/"
	for _, c := range []struct {
		name  string
		files map[string]string
		want  int // MiB
	}{
		{"no groups", map[string]string{}, 8192},
		{"v2 without a limit", map[string]string{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": mountV2, v2 + "memory.max": "max\n",
		}, 8192},
		{"v2, its own limit", map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": mountV2,
			v2 + "a/b/memory.max": bytesOf(4096 * mib), v2 + "a/b/memory.current": bytesOf(1024 * mib),
		}, 3072},
		{"v2, a limit around it", map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": mountV2,
			v2 + "a/b/memory.max": "max\n", v2 + "a/memory.max": bytesOf(2048 * mib),
			v2 + "a/memory.current": bytesOf(48 * mib),
		}, 2000},
		{"v2, the nearer limit is the larger", map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": mountV2,
			v2 + "a/b/memory.max": bytesOf(4096 * mib), v2 + "a/memory.max": bytesOf(1000 * mib),
		}, 1000},
		{"v2, page cache counts as free", map[string]string{
			"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": mountV2,
			v2 + "a/memory.max": bytesOf(4096 * mib), v2 + "a/memory.current": bytesOf(4000 * mib),
			v2 + "a/memory.stat": "anon 5\ninactive_file " + bytesOf(3000*mib) + "active_file " + bytesOf(900*mib),
		}, 3996},
		{"v2, the limit is larger than the machine", map[string]string{
			"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": mountV2, v2 + "a/memory.max": bytesOf(64 << 30),
		}, 8192},
		{"v1", map[string]string{
			"proc/self/cgroup":               "9:name=systemd:/\n4:cpu,memory:/x/y\n1:cpu:/\n0::/\n",
			"proc/self/mountinfo":            fmt.Sprintf(mountV1, "/"),
			v1 + "x/y/memory.limit_in_bytes": bytesOf(9223372036854771712),
			v1 + "x/memory.limit_in_bytes":   bytesOf(4096 * mib),
			v1 + "x/memory.usage_in_bytes":   bytesOf(512 * mib),
			v1 + "x/memory.stat": "cache 1\ntotal_inactive_file " +
				bytesOf(12*mib),
		}, 3596},
		{"v1 in a container that sees its group as the top", map[string]string{
			"proc/self/cgroup": "4:memory:/docker/0a1b\n", "proc/self/mountinfo": fmt.Sprintf(mountV1, "/docker/0a1b"),
			v1 + "memory.limit_in_bytes": bytesOf(1024 * mib),
		}, 1024},
		{"v1, a group outside of what is mounted", map[string]string{
			"proc/self/cgroup": "4:memory:/docker/0a1b-other\n", "proc/self/mountinfo": fmt.Sprintf(mountV1,
				"/docker/0a1b"),
			v1 + "memory.limit_in_bytes": bytesOf(1024 * mib), v1 + "-other/memory.limit_in_bytes": bytesOf(1 * mib),
		}, 1024},
		{"both, v2 without memory", map[string]string{
			"proc/self/cgroup": "4:memory:/x\n0::/\n", "proc/self/mountinfo": fmt.Sprintf(mountV1, "/") + mountV2,
			v1 + "x/memory.limit_in_bytes": bytesOf(2048 * mib),
		}, 2048},
	} {
		c.files["proc/meminfo"] = meminfo8
		if got := available(machine(t, c.files)); got != c.want*mib {
			t.Errorf("%s: %d MiB and %d bytes, want %d MiB", c.name, got/mib, got%mib, c.want)
		}
	}
	full := map[string]string{
		"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": mountV2, v2 + "a/memory.max": bytesOf(mib),
		v2 + "a/memory.current": bytesOf(mib),
	}
	if got := available(machine(t, full)); got != 1 {
		t.Errorf("a full group has %d bytes left, want 1: 0 would be unknown", got)
	}
	if got := available(machine(t, nil)); got != 0 {
		t.Errorf("a system that says nothing has %d bytes, want 0", got)
	}
}
