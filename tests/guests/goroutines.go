// Calls from goroutines with as little stack as Go leaves them: what lies below is another goroutine's stack, and the blob's
// frames must not reach it.
package main

import (
	"fmt"
	"os"
	"sync"
	"syscall"
)

// Frames of 16 bytes more each, so that the stack's end is met at every distance.
//
//go:noinline
func deep(n int, f func()) int {
	if n == 0 {
		f()
		return 1
	}
	return deep(n-1, f) + 1
}

// A goroutine that has something at the very top of its stack and waits.
func sentinel(stop chan struct{}, ready *sync.WaitGroup, done *sync.WaitGroup) {
	var mark [24]uint64
	for i := range mark {
		mark[i] = 0x5e5e5e5e00000000 | uint64(i)
	}
	ready.Done()
	<-stop
	for i := range mark {
		if mark[i] != 0x5e5e5e5e00000000|uint64(i) {
			fmt.Printf("= broken %x\n", mark[i])
			os.Exit(7)
		}
	}
	done.Done()
}

func main() {
	stop := make(chan struct{})
	var ready, done sync.WaitGroup
	calls := []struct {
		name string
		f    func()
	}{
		{"stat", func() { var s syscall.Stat_t; syscall.Stat("/", &s) }},
		{"open", func() {
			fd, err := syscall.Open("/dev/null", syscall.O_RDONLY, 0)
			if err == nil {
				syscall.Close(fd)
			}
		}},
		{"select", func() {
			t := syscall.Timeval{Usec: 10}
			syscall.Select(0, nil, nil, nil, &t)
		}},
		{"nanosleep", func() { t := syscall.Timespec{Nsec: 1000}; syscall.Nanosleep(&t, nil) }},
		{"getrusage", func() { var u syscall.Rusage; syscall.Getrusage(0, &u) }},
		{"exec", func() {
			pid, err := syscall.ForkExec("/bin/true", []string{"true"}, nil)
			if err != nil {
				fmt.Println("= exec", err)
				os.Exit(8)
			}
			var w syscall.WaitStatus
			syscall.Wait4(pid, &w, 0, nil)
		}},
	}
	for _, c := range calls {
		step, most := 1, 260
		if c.name == "exec" {
			step = 3
		}
		for n := 0; n < most; n += step {
			// Neighbours on both sides, of the same size.
			var turn sync.WaitGroup
			for i := 0; i < 2; i++ {
				ready.Add(1)
				done.Add(1)
				go sentinel(stop, &ready, &done)
				turn.Add(1)
				go func() { defer turn.Done(); deep(n, c.f) }()
			}
			turn.Wait()
		}
		fmt.Printf("= %s done\n", c.name)
	}
	close(stop)
	done.Wait()
	fmt.Println("= all well")
}
