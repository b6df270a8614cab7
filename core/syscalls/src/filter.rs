//! The seccomp filter, generated from the table, and an interpreter to test it.
//!
//! Layout: architecture, then a chain of number comparisons that loads nothing else (so that the kernel's
//! per-call cache answers for all numbers without a row), then one block per row.

use alloc::vec::Vec;

use crate::{Action, ROWS, Row, Test, When};

/// One classic BPF instruction (`struct sock_filter`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilterInsn {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

const LD_ABS: u16 = 0x20;
const AND_K: u16 = 0x54;
const JA: u16 = 0x05;
const JEQ: u16 = 0x15;
const JGT: u16 = 0x25;
const JGE: u16 = 0x35;
const RET: u16 = 0x06;

const RET_ALLOW: u32 = 0x7fff_0000;
const RET_ERRNO: u32 = 0x0005_0000;
const RET_TRAP: u32 = 0x0003_0000;
const RET_USER_NOTIF: u32 = 0x7fc0_0000;
const RET_KILL_PROCESS: u32 = 0x8000_0000;
const ARCH_X86_64: u32 = 0xc000_003e;
const X32_BIT: u32 = 0x4000_0000;
const ENOSYS: u32 = 38;

const OFF_NR: u32 = 0;
const OFF_ARCH: u32 = 4;
const OFF_IP_LOW: u32 = 8;
const OFF_IP_HIGH: u32 = 12;
const fn arg_low(i: u8) -> u32 {
    16 + 8 * i as u32
}
const fn arg_high(i: u8) -> u32 {
    20 + 8 * i as u32
}

fn ins(code: u16, jt: u8, jf: u8, k: u32) -> FilterInsn {
    FilterInsn { code, jt, jf, k }
}

/// Jump targets inside one block, resolved when the block is complete.
#[derive(Clone, Copy)]
enum To {
    Next,
    Trap,
    Allow,
    /// The next test of the block.
    Test,
    /// The test after the next.
    Skip,
}

struct Block {
    code: Vec<(FilterInsn, To, To)>,
    test_ends: Vec<usize>,
}

impl Block {
    fn push(&mut self, i: FilterInsn, t: To, f: To) {
        self.code.push((i, t, f));
    }
    fn load(&mut self, k: u32) {
        self.push(ins(LD_ABS, 0, 0, k), To::Next, To::Next);
    }

    /// Adds one test that goes to `yes` when it holds and to `no` when it does not.
    fn test(&mut self, t: Test, yes: To, no: To) {
        match t {
            Test::NonNull(a) => {
                self.load(arg_low(a));
                self.push(ins(JEQ, 0, 0, 0), To::Next, yes);
                self.load(arg_high(a));
                self.push(ins(JEQ, 0, 0, 0), no, yes);
            }
            Test::IntPositive(a) => {
                self.load(arg_low(a));
                self.push(ins(JEQ, 0, 0, 0), no, To::Next);
                self.push(ins(JGT, 0, 0, 0x7fff_ffff), no, yes);
            }
            Test::LowIn { arg, clear, values } => {
                self.load(arg_low(arg));
                if clear != 0 {
                    self.push(ins(AND_K, 0, 0, !clear), To::Next, To::Next);
                }
                for (i, v) in values.iter().enumerate() {
                    let last = i + 1 == values.len();
                    self.push(ins(JEQ, 0, 0, *v), yes, if last { no } else { To::Next });
                }
            }
        }
        self.test_ends.push(self.code.len());
    }

    /// Appends `ALLOW` and `TRAP` and resolves all targets.
    fn finish(self, trap: u32) -> Vec<FilterInsn> {
        let allow_at = self.code.len();
        let trap_at = allow_at + 1;
        let mut out: Vec<FilterInsn> = Vec::new();
        for (at, (i, t, f)) in self.code.iter().enumerate() {
            let resolve = |to: &To| -> u8 {
                let target = match to {
                    To::Next => at + 1,
                    To::Allow => allow_at,
                    To::Trap => trap_at,
                    To::Test => *self.test_ends.iter().find(|e| **e > at).unwrap_or(&allow_at),
                    To::Skip => *self.test_ends.iter().filter(|e| **e > at).nth(1).unwrap_or(&allow_at),
                };
                u8::try_from(target - at - 1).expect("a block is shorter than 256 instructions")
            };
            let is_jump = i.code & 0x07 == 0x05;
            out.push(if is_jump { ins(i.code, resolve(t), resolve(f), i.k) } else { *i });
        }
        out.push(ins(RET, 0, 0, RET_ALLOW));
        out.push(ins(RET, 0, 0, trap));
        out
    }
}

fn block(row: &Row, blob: (u64, u64), trap_data: u16) -> Vec<FilterInsn> {
    match row.action {
        Action::Notify => [ins(RET, 0, 0, RET_USER_NOTIF)].to_vec(),
        Action::NotifyIf(tests) => {
            let mut b = Block { code: Vec::new(), test_ends: Vec::new() };
            for (i, t) in tests.iter().enumerate() {
                b.test(*t, To::Trap, if i + 1 == tests.len() { To::Allow } else { To::Test });
            }
            b.finish(RET_USER_NOTIF)
        }
        Action::Refuse(errno) => [ins(RET, 0, 0, RET_ERRNO | u32::from(errno))].to_vec(),
        Action::Trap(when) => {
            let mut b = Block { code: Vec::new(), test_ends: Vec::new() };
            // From inside the blob: allowed. The blob lies in one 4 GiB window; ip is after the instruction.
            b.load(OFF_IP_HIGH);
            b.push(ins(JEQ, 0, 0, (blob.0 >> 32) as u32), To::Next, To::Test);
            b.load(OFF_IP_LOW);
            b.push(ins(JGE, 0, 0, blob.0 as u32), To::Next, To::Test);
            b.push(ins(JGT, 0, 0, blob.1 as u32), To::Test, To::Allow);
            b.test_ends.push(b.code.len());
            match when {
                When::Always => b.push(ins(JA, 0, 0, 1), To::Next, To::Next),
                When::Any(tests) => {
                    for (i, t) in tests.iter().enumerate() {
                        let last = i + 1 == tests.len();
                        b.test(*t, To::Trap, if last { To::Allow } else { To::Test });
                    }
                }
                When::All(tests) => {
                    for (i, t) in tests.iter().enumerate() {
                        let last = i + 1 == tests.len();
                        b.test(*t, if last { To::Trap } else { To::Test }, To::Allow);
                    }
                }
                When::EitherAnd([one, other], also) => {
                    b.test(one, To::Skip, To::Test);
                    b.test(other, To::Test, To::Allow);
                    b.test(also, To::Trap, To::Allow);
                }
                When::Options(levels) => {
                    for (i, (level, names)) in levels.iter().enumerate() {
                        let level = core::slice::from_ref(level);
                        let other = if i + 1 == levels.len() { To::Allow } else { To::Skip };
                        b.test(Test::LowIn { arg: 1, clear: 0, values: level }, To::Test, other);
                        b.test(Test::LowIn { arg: 2, clear: 0, values: names }, To::Trap, To::Allow);
                    }
                }
            }
            // An unconditional jump over ALLOW: its operand is k, not jt.
            let mut code = b.finish(RET_TRAP | u32::from(trap_data));
            for i in &mut code {
                if i.code == JA {
                    (i.jt, i.jf, i.k) = (0, 0, 1);
                }
            }
            code
        }
    }
}

/// The filter for a blob that occupies `blob.0 ..= blob.1` and expects `trap_data` in si_errno.
pub fn filter(blob: (u64, u64), trap_data: u16) -> Vec<FilterInsn> {
    let mut out = [
        ins(LD_ABS, 0, 0, OFF_ARCH),
        ins(JEQ, 1, 0, ARCH_X86_64),
        ins(RET, 0, 0, RET_KILL_PROCESS),
        ins(LD_ABS, 0, 0, OFF_NR),
        ins(JGE, 0, 1, X32_BIT),
        ins(RET, 0, 0, RET_ERRNO | ENOSYS),
    ]
    .to_vec();
    let blocks: Vec<Vec<FilterInsn>> = ROWS.iter().map(|r| block(r, blob, trap_data)).collect();
    // Chain: `jeq nr, 0, 1; ja block` for each row, then ALLOW, then the blocks in order.
    let chain_len = ROWS.len() * 2 + 1;
    let mut offset = chain_len;
    for (i, (row, b)) in ROWS.iter().zip(&blocks).enumerate() {
        out.push(ins(JEQ, 0, 1, row.nr));
        out.push(ins(JA, 0, 0, (offset - (2 * i + 2)) as u32));
        offset += b.len();
    }
    out.push(ins(RET, 0, 0, RET_ALLOW));
    for b in blocks {
        out.extend(b);
    }
    out
}

/// The filter as the bytes of an array of `struct sock_filter`.
pub fn filter_bytes(blob: (u64, u64), trap_data: u16) -> Vec<u8> {
    let mut out = Vec::new();
    for i in filter(blob, trap_data) {
        out.extend(i.code.to_ne_bytes());
        out.extend([i.jt, i.jf]);
        out.extend(i.k.to_ne_bytes());
    }
    out
}

/// What a filter is asked about.
#[derive(Clone, Copy, Debug)]
pub struct SeccompData {
    pub nr: u32,
    pub arch: u32,
    pub ip: u64,
    pub args: [u64; 6],
}

/// Runs a filter and returns its verdict and whether it loaded anything but number and architecture.
/// None when it runs off its end or meets an instruction that [`filter`] never makes.
pub fn evaluate(code: &[FilterInsn], data: &SeccompData) -> Option<(u32, bool)> {
    let (mut at, mut a, mut looked) = (0usize, 0u32, false);
    loop {
        let i = code.get(at)?;
        at += 1;
        let jump = |c: bool| if c { i.jt as usize } else { i.jf as usize };
        match i.code {
            LD_ABS => {
                looked |= i.k >= 8;
                a = match i.k {
                    0 => data.nr,
                    4 => data.arch,
                    8 => data.ip as u32,
                    12 => (data.ip >> 32) as u32,
                    k => {
                        let v = *data.args.get(((k - 16) / 8) as usize)?;
                        if k % 8 == 0 { v as u32 } else { (v >> 32) as u32 }
                    }
                };
            }
            AND_K => a &= i.k,
            JA => at += i.k as usize,
            JEQ => at += jump(a == i.k),
            JGT => at += jump(a > i.k),
            JGE => at += jump(a >= i.k),
            RET => return Some((i.k, looked)),
            _ => return None,
        }
    }
}
