package data

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// ownGroup does nothing: Windows has no groups of processes that end together.
func ownGroup(*exec.Cmd) {}

// endGroup kills the program; processes that it has started go on.
func endGroup(cmd *exec.Cmd) {
	if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		panic(fmt.Sprintf("data: killing process %d: %v", cmd.Process.Pid, err))
	}
}
