// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// Hits of the meter from a clock of each core: a thread that is metered and has the core at a tick gets a SIGTRAP on its
// way back to its program.
//
// A perf event of each thread does the same, after each grain of that thread's CPU time. But its timer is set whenever the
// thread gets a core and ended when it gives it up, which costs 2 us a switch, and 7 in a nested virtual machine, where
// each is an exit. The clock of a core is set once a tick, whoever runs.
//
// A thread that gives the core up often is seldom met by a tick, and then all that it has used since would make one long
// sleep, or it would never be met: `switched` has it hit as it gets a core once a hit is overdue.
//
// Who is metered is handed on as a perf event is: `begun` gives it to children and threads, `executed` takes it away.
// A hit waits for the thread's way out of the kernel (task work), so that no system call ends with EINTR, and asks again
// there who is metered: the program may have called execve.
//
// A tick that comes late tells that its core stood still: a host of virtual machines lets one rest for milliseconds now and
// then, and calls not all of it stolen. The thread that has the core seems to have worked for as long; its hit tells.

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#define SIGTRAP 5
#define PF_EXITING 4
// core/abi has the same. Twenty-four bits.
#define METER_MAGIC 0xecca57ull
#define METER_PAUSED_MAGIC 0xecca58ull
// More than either where the thread's packets tell what it uses.
#define PACKETS_TELL 2
// Above that how long the thread has waited for cores since its last hit or packet, in units of 8 us; as many and more than the
// last are not told.
#define DELAY_SHIFT 24
#define DELAY_UNIT_SHIFT 13
#define DELAY_UNITS_MAX 255
// When the hit was left, in units of 512 ns: the last eight bits of that above all else.
#define LEFT_SHIFT 56
#define LEFT_UNIT_SHIFT 9
// With the other magic number for how long the core stood still since the last hit: `paused_units`.
// A tick that is no later, ns, was kept off by an interrupt or the like.
#define PAUSED_MIN_NS 500000
// One that is later is that of a clock that did not tick meanwhile.
#define PAUSED_MAX_NS 1000000000

// The kernel's structures, only what is read; libbpf finds the offsets in the kernel's BTF.
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct sched_entity {
	__u64 sum_exec_runtime;
};
struct sched_info {
	unsigned long long run_delay;
};
struct task_struct {
	int pid;
	unsigned int flags;
	unsigned int ptrace;
	unsigned long jobctl;
	int static_prio;
	unsigned int policy;
	unsigned int personality;
	struct sched_entity se;
	struct sched_info sched_info;
};
struct pt_regs {
	unsigned long r8;
	unsigned long orig_ax;
};
struct linux_binprm {
	int argc;
};
struct bpf_map {
	__u32 id;
};
#pragma clang attribute pop
enum pid_type { PIDTYPE_PID };
struct bpf_task_work {
	__u64 __opaque;
} __attribute__((aligned(8)));

extern int bpf_send_signal_task(struct task_struct *task, int sig, enum pid_type type, __u64 value) __ksym;
extern int bpf_task_work_schedule_resume_impl(struct task_struct *task, struct bpf_task_work *work, void *map__map,
					      int (*callback)(struct bpf_map *map, void *key, void *value),
					      void *aux__prog) __ksym;

// CPU time without a hit after which a thread is hit as it gets a core, and what lies between two ticks, ns. The only constants.
const volatile __u64 overdue_ns = 0, period_ns = 0;

#include "meter.h"

// When each core's clock ticked last, CLOCK_MONOTONIC ns, or should have: a tick does not always come here, and one that came
// late left the clock's next where they were.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} ticked SEC(".maps");

// What was left to do for a thread on its way out of the kernel, by its number. A thread that sleeps there has it before it
// for as long, so that none may share it.
struct work {
	struct bpf_task_work work;
	// When it was left.
	__u64 left_ns;
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	// Set to the threads that the host can have: its buckets take 16 bytes each.
	__uint(max_entries, 1);
	__type(key, int);
	__type(value, struct work);
} works SEC(".maps");

static __always_inline struct meter *meter_of(struct task_struct *task)
{
	// A tracer would see each hit; what `ended` took from a thread stays taken.
	return task->ptrace || task->flags & PF_EXITING ? NULL : bpf_task_storage_get(&metered, task, 0, 0);
}

// What the kernel knows of how a thread is scheduled, above a magic number: its nice value plus 21 in 8 bits, its policy in
// 4, and in 12 what the blob keeps in its personality (see the blob's sched).
static __always_inline __u64 standing(struct task_struct *task)
{
	__u64 carried = (task->personality >> 8 & 0xff) | task->personality >> 28 << 8;

	return (__u64)(task->static_prio - 99) << 32 | (__u64)(task->policy & 0xf) << 40 | carried << 44;
}

// CPU time of the present thread, ns: the kernel adds it up at switches and at its own ticks. Too much where a switch was not seen or
// a host stole its time, until it gives up the core.
static __always_inline __u64 cpu_time_here(const struct meter *meter)
{
	return meter->on_cpu_ns + (bpf_ktime_get_ns() - meter->on_ns);
}

static int hit(struct bpf_map *map, void *key, void *value)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct work *work = value;
	struct meter *meter = meter_of(task);
	__u64 paused, told, delay_ns, delay_units;

	if (!meter)
		return 0;
	paused = paused_units(meter);
	told = paused ? METER_PAUSED_MAGIC | paused << LEFT_SHIFT : METER_MAGIC | work->left_ns >> LEFT_UNIT_SHIFT << LEFT_SHIFT;
	told += packets_tell(meter) ? PACKETS_TELL : 0;
	delay_ns = task->sched_info.run_delay - meter->delay_ns;
	delay_units = delay_ns >> DELAY_UNIT_SHIFT;
	if (delay_units >= DELAY_UNITS_MAX)
		delay_units = DELAY_UNITS_MAX;
	else
		// What is less than a unit is told by a later one.
		delay_ns = delay_units << DELAY_UNIT_SHIFT;
	told |= delay_units << DELAY_SHIFT;
	// What the thread has used is added up when it gives the core up, as it does in its hit, and at the kernel's ticks:
	// now it would be too little by most of a slice, and the thread be hit again as it gets the core.
	if (bpf_send_signal_task(task, SIGTRAP, PIDTYPE_PID, standing(task) | told))
		return 0;
	meter->hit_ns = NEVER;
	// Of one that has sent its first packet since it got the core, that is not known.
	if (meter->on_ns)
		meter->last_hit_cpu_ns = cpu_time_here(meter);
	meter->paused_ns = 0;
	meter->delay_ns += delay_ns;
	return 0;
}

// One that can't be left, since there is one already or no memory, is left by a later tick.
static __always_inline void leave_hit(struct task_struct *task)
{
	struct work none = {};
	int thread = task->pid;
	struct work *work = bpf_map_lookup_elem(&works, &thread);

	if (!work) {
		bpf_map_update_elem(&works, &thread, &none, BPF_NOEXIST);
		work = bpf_map_lookup_elem(&works, &thread);
	}
	if (!work)
		return;
	work->left_ns = bpf_ktime_get_ns();
	bpf_task_work_schedule_resume_impl(task, &work->work, &works, hit, NULL);
}

// When this core's clock ticked last, and what has passed since, ns.
static __always_inline __u64 *last_tick(__u64 now, __u64 *since)
{
	__u32 here = 0;
	__u64 *last = bpf_map_lookup_elem(&ticked, &here);

	if (last)
		*since = now > *last ? now - *last : 0;
	return last;
}

// Takes this core's clock to the last of its ticks so far, seen or not; ticks are seen a little late.
static __always_inline void forward(__u64 *last, __u64 since)
{
	*last += (since + PAUSED_MIN_NS / 2) / period_ns * period_ns;
}

// For how long this core stood still, ns, as its clock ticks: it did so for up to a period more, in which it also worked.
static __always_inline __u64 paused_before_tick(void)
{
	__u64 now = bpf_ktime_get_ns(), since, *last = last_tick(now, &since);

	if (!last)
		return 0;
	if (since > period_ns + PAUSED_MIN_NS && since < PAUSED_MAX_NS) {
		forward(last, since);
		return since - period_ns;
	}
	*last = now;
	return 0;
}

// Who had the core until now is not metered: what it did not tick for is none of the next one's. In some kernels no event meets
// the idle thread of any core but the first.
static __always_inline void others_had_core(void)
{
	__u64 since, *last = last_tick(bpf_ktime_get_ns(), &since);

	if (last && since > period_ns && since < PAUSED_MAX_NS)
		forward(last, since);
}

SEC("perf_event")
int tick(void *context)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 paused_ns = paused_before_tick();
	struct meter *meter = meter_of(task);

	if (!meter)
		return 0;
	meter->paused_ns += paused_ns;
	if (!packets_tell(meter) || is_due(meter, cpu_time_here(meter), period_ns))
		leave_hit(task);
	return 0;
}

// A thread that sends packets blocks.
static __always_inline void blocks(struct meter *meter, struct task_struct *task)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);

	if (!is_meters_sleep(BPF_CORE_READ(regs, orig_ax), regs))
		burst_is_over(meter, task->se.sum_exec_runtime);
	else if (pays_before_wait(regs)) {
		// It owes nothing then: no tick within a period is a hit, nor is it overdue; what its core stood still its packets
		// have told.
		pays(meter, task->se.sum_exec_runtime);
		meter->last_hit_cpu_ns = task->se.sum_exec_runtime + period_ns / 2;
		meter->hit_ns = NEVER;
		meter->paused_ns = 0;
	}
}

SEC("tp_btf/sched_switch")
int BPF_PROG(switched, bool preempted, struct task_struct *previous, struct task_struct *next, unsigned int state)
{
	struct meter *meter = next->pid ? meter_of(next) : NULL, *before = previous->pid ? meter_of(previous) : NULL;

	// Of threads that send packets only: what is done here makes each switch dearer.
	if (before && before->told_cpu_ns) {
		// Now the kernel's account is exact. A last hit ahead of it would put off the next for as long: after a switch that some
		// kernels hide the thread seemed to have had its core all along, and what a host steals is none of its CPU time.
		if ((__s64)(before->last_hit_cpu_ns - previous->se.sum_exec_runtime) > (__s64)(period_ns / 2))
			before->last_hit_cpu_ns = previous->se.sum_exec_runtime;
		if (!preempted && state && !is_stopped(previous, state))
			blocks(before, previous);
	}
	if (!meter)
		return 0;
	if (!before)
		others_had_core();
	if (meter->told_cpu_ns) {
		meter->on_cpu_ns = next->se.sum_exec_runtime;
		meter->on_ns = bpf_ktime_get_ns();
	}
	if (meter->hit_ns > next->se.sum_exec_runtime)
		meter->hit_ns = next->se.sum_exec_runtime;
	else if (next->se.sum_exec_runtime - meter->hit_ns > overdue_ns)
		leave_hit(next);
	return 0;
}

SEC("tp_btf/task_newtask")
int BPF_PROG(begun, struct task_struct *task, __u64 flags)
{
	struct meter *meter;

	if (!bpf_task_storage_get(&metered, bpf_get_current_task_btf(), 0, 0))
		return 0;
	meter = bpf_task_storage_get(&metered, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (meter)
		meter->hit_ns = NEVER;
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(ended, struct task_struct *task)
{
	int thread = task->pid;

	if (bpf_task_storage_get(&metered, task, 0, 0))
		bpf_map_delete_elem(&works, &thread);
	return 0;
}

// A thread that is not the process's first takes its number.
SEC("tp_btf/sched_process_exec")
int BPF_PROG(executed, struct task_struct *task, int old_thread, struct linux_binprm *program)
{
	if (bpf_task_storage_get(&metered, task, 0, 0)) {
		bpf_map_delete_elem(&works, &old_thread);
		bpf_task_storage_delete(&metered, task);
	}
	return 0;
}

char _license[] SEC("license") = "GPL";
