// Go, static: goroutines, timers, tickers, contexts, sockets, child processes.
package main

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

func say(words ...any) { os.Stdout.WriteString(fmt.Sprintln(words...)) }

var start = time.Now()

// CPU time of the whole process, ns.
func used() int64 {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return usage.Utime.Nano() + usage.Stime.Nano()
}

func wait(name string, asked time.Duration, f func()) {
	before, cpu := time.Now(), used()
	f()
	took := time.Since(before)
	// It may be late by what the program does itself: threads are made, memory is collected.
	say("wait", name, asked.Nanoseconds(), took.Nanoseconds(), used()-cpu)
}

// CPU time for each wait, the best of rounds.
func idle(waits int) {
	best := int64(math.MaxInt64)
	for round := 0; round < 4; round++ {
		before := used()
		for i := 0; i < waits; i++ {
			time.Sleep(2 * time.Millisecond)
		}
		best = min(best, used()-before)
	}
	say("value cpu_ns_per_wait", best/int64(waits))
}

func main() {
	if len(os.Args) > 2 && os.Args[1] == "idle" {
		waits, _ := strconv.Atoi(os.Args[2])
		idle(waits)
		return
	}
	ms := time.Millisecond
	say("stamp start", time.Since(start).Nanoseconds())
	wait("sleep", 50*ms, func() { time.Sleep(50 * ms) })
	wait("after", 50*ms, func() { <-time.After(50 * ms) })
	wait("ticker", 60*ms, func() {
		t := time.NewTicker(20 * ms)
		defer t.Stop()
		for i := 0; i < 3; i++ {
			<-t.C
		}
	})
	wait("context", 50*ms, func() {
		c, cancel := context.WithTimeout(context.Background(), 50*ms)
		defer cancel()
		<-c.Done()
		say("= context", c.Err())
	})
	var group sync.WaitGroup
	wait("goroutines", 30*ms, func() {
		for i := 0; i < 50; i++ {
			group.Add(1)
			go func() { time.Sleep(30 * ms); group.Done() }()
		}
		group.Wait()
	})
	// Threads: each goroutine holds one, with the collector at work beside them.
	wait("threads", 30*ms, func() {
		for i := 0; i < 8; i++ {
			group.Add(1)
			go func() {
				runtime.LockOSThread()
				t := syscall.NsecToTimespec(int64(30 * ms))
				for syscall.Nanosleep(&t, &t) == syscall.EINTR {
				}
				group.Done()
			}()
		}
		for i := 0; i < 4; i++ {
			runtime.GC()
		}
		group.Wait()
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		say("= listen", err)
		return
	}
	go func() {
		c, _ := l.Accept()
		line, _ := bufio.NewReader(c).ReadString('\n')
		time.Sleep(40 * ms)
		c.Write([]byte(line))
		time.Sleep(time.Hour)
	}()
	c, _ := net.Dial("tcp", l.Addr().String())
	wait("socket", 40*ms, func() {
		c.Write([]byte("hello\n"))
		line, _ := bufio.NewReader(c).ReadString('\n')
		say("= echo", strings.TrimSpace(line))
	})
	wait("deadline", 50*ms, func() {
		c.SetReadDeadline(time.Now().Add(50 * ms))
		_, err := c.Read(make([]byte, 1))
		say("= deadline", os.IsTimeout(err))
	})
	s := make(chan os.Signal, 1)
	signal.Notify(s, syscall.SIGUSR1, syscall.SIGSYS)
	syscall.Kill(os.Getpid(), syscall.SIGUSR1)
	say("= signal", <-s)
	syscall.Kill(os.Getpid(), syscall.SIGSYS)
	say("= signal", <-s)
	out, err := exec.Command("sh", "-c", "sleep 0.02; echo child").Output()
	say("= child", strings.TrimSpace(string(out)), err)
	say("near clocks", time.Now().UnixNano(), start.Add(time.Since(start)).UnixNano())
	say("stamp end", time.Since(start).Nanoseconds())
}
