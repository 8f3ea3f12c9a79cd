package main

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// signalled starts the program, waits until ready, sends it a signal, and gives how it ended and what it said from the
// beginning.
func signalled(t *testing.T, ready func(said string) bool, signals []os.Signal, args ...string) (state *os.ProcessState,
	said string) {
	t.Helper()
	c := exec.Command(os.Args[0], args...)
	c.Env = append(os.Environ(), asProgram+"=1")
	problems, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(time.Minute, func() { c.Process.Kill() })
	defer stuck.Stop()
	lines, ended := make(chan string), make(chan struct{})
	go func() {
		defer close(ended)
		for s := bufio.NewScanner(problems); s.Scan(); {
			lines <- s.Text() + "\n"
		}
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case line := <-lines:
			said += line
		case <-tick.C:
		case <-ended:
			c.Wait() // the state says what the error would
			return c.ProcessState, said
		}
		if len(signals) > 0 && ready(said) {
			if err := c.Process.Signal(signals[0]); err != nil {
				t.Fatal(err)
			}
			signals, ready = signals[1:], func(said string) bool {
				return strings.Contains(said, "a second signal stops at once")
			}
		}
	}
}

// A signal lets a step finish and saves; the exit code says that the run is not done, and resuming gives its bits.
func TestStopped(t *testing.T) {
	dir := t.TempDir()
	whole, cut := filepath.Join(dir, "whole"), filepath.Join(dir, "cut")
	args := append([]string{"train", shape}, append(small, "--set=run.steps=60", "--set=run.save_every=0")...)
	must(t, append(args, "--out", whole)...)
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		state, said := signalled(t, func(said string) bool {
			return strings.Contains(said, "step 1/60")
		}, []os.Signal{s}, append(args, "--out", cut)...)
		if state.ExitCode() != 1 ||
			!strings.HasSuffix(said, "lockstep: interrupted; the state is saved: continue with --resume\n") {
			t.Fatalf("%v: %v, %s", s, state, said)
		}
		must(t, append(args, "--out", cut, "--resume")...)
		if read(t, filepath.Join(cut, "model", weights)) != read(t, filepath.Join(whole, "model", weights)) {
			t.Errorf("%v: other bits", s)
		}
		if err := os.RemoveAll(cut); err != nil {
			t.Fatal(err)
		}
	}
}

// A second signal ends the program wherever it is.
func TestStoppedTwice(t *testing.T) {
	dir := t.TempDir()
	// takes minutes to make
	args := append([]string{"train", shape, "--out", filepath.Join(dir, "run")},
		append(small, "--set=data.countdown.train=10000000")...)
	began := time.Now()
	state, said := signalled(t, func(string) bool {
		return time.Since(began) > time.Second
	}, []os.Signal{os.Interrupt, os.Interrupt}, args...)
	if status := state.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGINT ||
		listing(t, dir) != "" {
		t.Errorf("%v, %s left %s", state, said, listing(t, dir))
	}
}

// A server says where it is, answers, and ends well when it is told to.
func TestServed(t *testing.T) {
	_, run := trained(t)
	var answer string
	served := func(said string) bool {
		_, rest, ok := strings.Cut(said, " on ")
		url, _, whole := strings.Cut(rest, ": ")
		if !ok || !whole {
			return false
		}
		res, err := http.Post(url+"/completions", "application/json",
			strings.NewReader(`{"prompt": "12 + 7", "max_tokens": 3, "ignore_eos": true, "logprobs": 0}`))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		answer = string(text)
		return true
	}
	state, said := signalled(t, served, []os.Signal{os.Interrupt}, "serve", "--model", filepath.Join(run, "model"),
		"--address", "127.0.0.1:0", "--name", "mine")
	if state.ExitCode() != 0 || !strings.HasPrefix(said, "mine on http://127.0.0.1:") ||
		!strings.Contains(answer, `"completion_tokens":3`) {
		t.Errorf("%v: %s%s", state, said, answer)
	}
}

// A server that has a key asks for it, and is named as the model's folder where no name is given.
func TestServedWithKey(t *testing.T) {
	t.Setenv(keyVariable, "secret")
	var got []int // status codes
	served := func(said string) bool {
		_, rest, ok := strings.Cut(said, " on ")
		url, _, complete := strings.Cut(rest, ": ")
		if !ok || !complete {
			return false
		}
		for _, key := range []string{"", "Bearer other", "Bearer secret"} {
			q, err := http.NewRequest(http.MethodGet, url+"/models", nil)
			if err != nil {
				t.Fatal(err)
			}
			q.Header.Set("Authorization", key)
			res, err := http.DefaultClient.Do(q)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			got = append(got, res.StatusCode)
		}
		return true
	}
	state, said := signalled(t, served, []os.Signal{os.Interrupt}, "serve", "--model", "model/testdata/qwen3",
		"--address", "127.0.0.1:0")
	if want := []int{401, 401, 200}; state.ExitCode() != 0 || !strings.HasPrefix(said, "qwen3 on http://") ||
		!slices.Equal(got, want) {
		t.Errorf("%v: status codes %v, want %v: %s", state, got, want, said)
	}
}

// A server with a certificate speaks HTTPS; SIGHUP ends it as other signals do.
func TestServedSecurely(t *testing.T) {
	cert, key := certificate(t)
	var status int
	served := func(said string) bool {
		_, rest, ok := strings.Cut(said, " on ")
		url, _, whole := strings.Cut(rest, ": ")
		if !ok || !whole {
			return false
		}
		roots := x509.NewCertPool()
		if text, err := os.ReadFile(cert); err != nil || !roots.AppendCertsFromPEM(text) {
			t.Fatalf("no certificate: %v", err)
		}
		c := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
		res, err := c.Get(url + "/models")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		status = res.StatusCode
		return true
	}
	state, said := signalled(t, served, []os.Signal{syscall.SIGHUP}, "serve", "--model", "model/testdata/qwen3",
		"--address", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key)
	if state.ExitCode() != 0 || !strings.Contains(said, "qwen3 on https://127.0.0.1:") || status != http.StatusOK {
		t.Errorf("%v: status %d: %s", state, status, said)
	}
}

// certificate writes a certificate for 127.0.0.1 and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	signed, err := x509.CreateCertificate(rand.Reader, c, c, public, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name, kind string, der []byte) string {
		return write(t, filepath.Join(dir, name), string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
	}
	return file("cert.pem", "CERTIFICATE", signed), file("key.pem", "PRIVATE KEY", secret)
}

// An empty API key is a mistake, not a server without one.
func TestEmptyKey(t *testing.T) {
	t.Setenv(keyVariable, "")
	refused(t, t.TempDir(), []string{keyVariable, "empty"}, "serve", "--model", "x", "--address", "127.0.0.1:0")
}

// A command that is stopped while it writes leaves nothing.
func TestStoppedWriting(t *testing.T) {
	dir, run := trained(t)
	in, out := filepath.Join(dir, "in.jsonl"), t.TempDir()
	var ids, text bytes.Buffer
	for range 4000 {
		fmt.Fprintf(&ids, "{\"ids\":[1%s]}\n", strings.Repeat(",7", 500))
	}
	for range 400000 {
		fmt.Fprintf(&text, "{\"text\":\"%s\"}\n", strings.Repeat("12 + 7 ", 20))
	}
	writing := func(string) bool { return listing(t, out) != "" }
	for command, lines := range map[string]string{"score": ids.String(), "tokenize": text.String()} {
		write(t, in, lines)
		state, said := signalled(t, writing, []os.Signal{os.Interrupt}, command, "--model", filepath.Join(run, "model"),
			"--in", in, "--out", filepath.Join(out, "made"))
		if state.ExitCode() != 1 || !strings.HasPrefix(said, "lockstep: ") ||
			!strings.HasSuffix(said, "interrupted\n") || listing(t, out) != "" {
			t.Errorf("%s: %v, %q, left %s", command, state, said, listing(t, out))
		}
	}
}
