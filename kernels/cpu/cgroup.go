package cpu

import (
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// hierarchy is what a version of control groups calls its files (the kernel's admin-guide/cgroup-v2.rst and
// cgroup-v1/memory.rst).
type hierarchy struct {
	limit, usage string   // files
	cache        []string // keys of memory.stat: page cache, which the kernel takes back before it ends a process
}

var (
	groupsV2 = hierarchy{"memory.max", "memory.current", []string{"active_file", "inactive_file"}}
	groupsV1 = hierarchy{"memory.limit_in_bytes", "memory.usage_in_bytes", []string{"total_active_file",
		"total_inactive_file"}}
)

// groupRoom is how many bytes the control groups of this process allow it: the least over its own group and the
// enclosing ones, of either version; the largest int without a limit.
func groupRoom(root string) int {
	groups, err := os.ReadFile(root + "proc/self/cgroup")
	if err != nil {
		return math.MaxInt
	}
	mounts, err := os.ReadFile(root + "proc/self/mountinfo")
	if err != nil {
		return math.MaxInt
	}
	room := math.MaxInt
	for _, m := range groupMounts(string(mounts)) {
		own, ok := ownGroup(string(groups), m.v2)
		if !ok {
			continue
		}
		h := groupsV1
		if m.v2 {
			h = groupsV2
		}
		for dir := m.below(own); ; dir = path.Dir(dir) {
			room = min(room, h.room(path.Join(root, m.point, dir)))
			if dir == "/" {
				break
			}
		}
	}
	return room
}

// groupMount is where a hierarchy of control groups that limits memory is mounted.
type groupMount struct {
	v2    bool
	root  string // the group that is seen at the mount point
	point string
}

// groupMounts reads /proc/self/mountinfo: "36 35 98:0 ROOT POINT options [tags] - TYPE SOURCE OPTIONS".
func groupMounts(text string) (mounts []groupMount) {
	for line := range strings.Lines(text) {
		mount, fs, ok := strings.Cut(line, " - ")
		m, f := strings.Fields(mount), strings.Fields(fs)
		if !ok || len(m) < 5 || len(f) < 3 {
			continue
		}
		v2 := f[0] == "cgroup2"
		if v2 || f[0] == "cgroup" && slices.Contains(strings.Split(f[2], ","), "memory") {
			mounts = append(mounts, groupMount{v2, m[3], m[4]})
		}
	}
	return mounts
}

// below is a group's folder under the mount point, from "/" on. A group outside of what is mounted, as a container may
// see its own, is limited by what is mounted at least.
func (m groupMount) below(group string) string {
	if m.root == "/" {
		return path.Clean(group)
	}
	if rest, ok := strings.CutPrefix(group, m.root); ok && (rest == "" || rest[0] == '/') {
		return path.Clean("/" + rest)
	}
	return "/"
}

// ownGroup reads /proc/self/cgroup: lines "ID:CONTROLLERS:GROUP", of version 2 "0::GROUP".
func ownGroup(text string, v2 bool) (group string, ok bool) {
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) < 3 {
			continue
		}
		if v2 && f[0] == "0" && f[1] == "" || !v2 && slices.Contains(strings.Split(f[1], ","), "memory") {
			return f[2], true
		}
	}
	return "", false
}

// room is how many bytes a group's limit leaves; the largest int without a limit.
func (h hierarchy) room(dir string) int {
	limit, ok := number(path.Join(dir, h.limit))
	if !ok || limit >= 1<<60 { // version 1 writes a number that no machine has
		return math.MaxInt
	}
	used, _ := number(path.Join(dir, h.usage))
	if stat, err := os.ReadFile(path.Join(dir, "memory.stat")); err == nil {
		for line := range strings.Lines(string(stat)) {
			if f := strings.Fields(line); len(f) == 2 && slices.Contains(h.cache, f[0]) {
				n, _ := strconv.Atoi(f[1])
				used -= n
			}
		}
	}
	return max(limit-max(used, 0), 0)
}

// number is the number in a file; ok is false without a file or for another word ("max").
func number(file string) (n int, ok bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	n, err = strconv.Atoi(strings.TrimSpace(string(text)))
	return n, err == nil
}
