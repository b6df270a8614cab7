// What the clocks of cores keep of each thread that is metered: freestanding/bpf-egress, whose packets tell some of it, has the
// same map.

// How the time for which a core stood still is told: units of 262 us, in eight bits. core/abi has the same.
#define PAUSED_UNIT_SHIFT 18
#define PAUSED_UNITS_MAX 255

#define NEVER (-1ull)

struct meter {
	// The CPU time that it had used as it first got a core after its last hit, or after its last packet that told what it had
	// used, ns; NEVER until then.
	__u64 hit_ns;
	// For how long cores stood still since its last hit while it had them, ns.
	__u64 paused_ns;
};
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct meter);
} metered SEC(".maps");

static __always_inline __u64 paused_units(const struct meter *meter)
{
	__u64 units = meter->paused_ns >> PAUSED_UNIT_SHIFT;

	return units < PAUSED_UNITS_MAX ? units : PAUSED_UNITS_MAX;
}
