// What the clocks of cores keep of each thread that is metered: freestanding/bpf-egress, whose packets tell some of it, has the
// same map.

// How the time for which a core stood still is told: units of 262 us, in eight bits. core/abi has the same.
#define PAUSED_UNIT_SHIFT 18
#define PAUSED_UNITS_MAX 255

#define NEVER (-1ull)
#define NR_FUTEX 202
#define NR_RESTART_SYSCALL 219
// In the fifth argument, which the call does not look at, of the meter's own sleeps (core/abi, METER_SLEEP).
#define METER_SLEEP 0xd1ec51eeu
// Above it (core/abi, METER_PAYS, is both): the thread pays before a wait of the program's, without a hit.
#define PAYS 1
// __TASK_STOPPED, __TASK_TRACED and TASK_FROZEN; the freezer of cgroup v2 has JOBCTL_TRAP_FREEZE instead.
#define STOPPED (4 | 8 | 0x8000)
#define TRAP_FREEZE (1ul << 23)

struct meter {
	// The CPU time that it had used as it first got a core after its last hit, or after its last packet that told what it had
	// used, ns; NEVER until then.
	__u64 hit_ns;
	// For how long cores stood still since its last hit while it had them, ns.
	__u64 paused_ns;
	// Of a thread that has sent a packet, or handed work on within its node, which counts as one here: the CPU time that it had
	// used when it got its core last, and CLOCK_MONOTONIC then, ns; and at its last hit; after it has paid before a wait half a
	// period more than it had then.
	__u64 on_cpu_ns;
	__u64 on_ns;
	__u64 last_hit_cpu_ns;
	// How long it had waited for cores when its last hit or packet told so, ns.
	__u64 delay_ns;
	// The CPU time that its last packet told, or at which that was paid for, and what it had used as it blocked last, ns.
	__u64 told_cpu_ns;
	__u64 burst_from_ns;
	// What its last bursts used in all, and up to their last packets, ns: an older one counts an eighth less.
	__u64 bursts_ns;
	__u64 bursts_told_ns;
};
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct meter);
} metered SEC(".maps");

// Whether this system call of a thread is a sleep of the meter's own; the rest of one, too, that a stop has interrupted.
static __always_inline bool is_meters_sleep(__u64 nr, struct pt_regs *regs)
{
	return (nr == NR_FUTEX || nr == NR_RESTART_SYSCALL) && (__u32)BPF_CORE_READ(regs, r8) == METER_SLEEP;
}

// Whether a sleep of the meter's own is one before a wait.
static __always_inline bool pays_before_wait(struct pt_regs *regs)
{
	return BPF_CORE_READ(regs, r8) >> 32 == PAYS;
}

// Whether a thread that leaves its core in this state is stopped, traced or frozen: it goes on with what it was at.
static __always_inline bool is_stopped(struct task_struct *task, unsigned int state)
{
	return state & STOPPED || task->jobctl & TRAP_FREEZE;
}

// The thread blocks, for another reason than the meter.
static __always_inline void burst_is_over(struct meter *meter, __u64 cpu_ns)
{
	__u64 from = meter->burst_from_ns;

	// What a packet told was an estimate.
	if (meter->told_cpu_ns > cpu_ns)
		meter->told_cpu_ns = cpu_ns;
	meter->bursts_ns += cpu_ns - from - meter->bursts_ns / 8;
	meter->bursts_told_ns += (meter->told_cpu_ns > from ? meter->told_cpu_ns - from : 0) - meter->bursts_told_ns / 8;
	meter->burst_from_ns = cpu_ns;
}

// What is paid for after a burst's packet is mostly what paying takes: as long as it is less than half of what the packet told it
// is no work that packets don't tell.
static __always_inline void pays(struct meter *meter, __u64 cpu_ns)
{
	__u64 from = meter->burst_from_ns, told = meter->told_cpu_ns;

	if (told > from && cpu_ns > told && cpu_ns - told < (told - from) / 2)
		meter->told_cpu_ns = cpu_ns;
}

// Nearly all that the thread does between two waits is told by a packet of its before it waits again.
static __always_inline bool packets_tell(const struct meter *meter)
{
	return meter->bursts_told_ns > meter->bursts_ns / 4 * 3;
}

// Where packets tell what the thread uses, and are held as long, a tick that meets it within half a period after its last hit is
// none.
static __always_inline bool is_due(const struct meter *meter, __u64 cpu_ns, __u64 period_ns)
{
	return (__s64)(cpu_ns - meter->last_hit_cpu_ns) > (__s64)(period_ns / 2);
}

static __always_inline __u64 paused_units(const struct meter *meter)
{
	__u64 units = meter->paused_ns >> PAUSED_UNIT_SHIFT;

	return units < PAUSED_UNITS_MAX ? units : PAUSED_UNITS_MAX;
}
