//go:build unix

package data

import (
	"fmt"
	"os/exec"
	"syscall"
)

// ownGroup gives a program a process group, which its children belong to.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// endGroup kills what is left of a program's process group. The group may be empty, or hold only zombies (EPERM on
// macOS).
func endGroup(cmd *exec.Cmd) {
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH &&
		err != syscall.EPERM {
		panic(fmt.Sprintf("data: killing process group %d: %v", cmd.Process.Pid, err))
	}
}
