//! The way in and out: signal entry, restorer, and the trampolines on the program's stack.
//!
//! The SIGSYS handler only decides. It puts a [`Record`] below the red zone of the interrupted stack (or, where the
//! signal frame itself lies there, in the frame, from where it moves up), points the saved stack pointer at it and the
//! saved instruction pointer at a trampoline, and returns. The work then runs as if the program had called a function:
//! its own stack, its own signal mask, no signal frame alive.

use core::arch::global_asm;
use core::mem::offset_of;

use diecast_core_abi::{
    ALT_ADDR, ALT_LEN, ALT_SLOTS, BeginArgs, InheritedPage, NODE_PAGE_ADDR, NodePage, OwnPage, PROC_PAGE_ADDR,
    ProcPage, TRACED_MAGIC, TRAP_MAGIC, TracedStart,
};
use diecast_core_syscalls::nr::CLONE3;

use crate::sys::{RESTART, Ret};
use crate::user;
use crate::{altstack, interrupt, signals};

/// What a trampoline needs to finish a call. Offsets are used by the assembly below.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Record {
    pub rdi: u64,
    pub rsi: u64,
    pub rdx: u64,
    pub r10: u64,
    pub r8: u64,
    pub r9: u64,
    pub nr: u64,
    /// Where the program goes on: after its `syscall` instruction.
    pub resume: u64,
    pub rsp: u64,
    pub rflags: u64,
}

impl Record {
    pub fn args(&self) -> [u64; 6] {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9]
    }
}

// SAFETY: plain integers.
unsafe impl user::Plain for Record {}

/// What lies below a record while its call is served: the address of [`trapped_after`], and the registers of the program
/// that functions must preserve.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Below {
    pub after: u64,
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
}
// SAFETY: plain integers.
unsafe impl user::Plain for Below {}

/// Registers to restore after clone3, once for the parent and once for the child.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Resume {
    pub resume: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rdx: u64,
    pub r10: u64,
    pub r8: u64,
    pub r9: u64,
    pub rsp: u64,
    /// Address of a word that the child clears when it has read all this; 0 = none.
    pub lent: u64,
}

/// A record for clone3: the call's registers as prepared, and room for copies.
#[repr(C)]
pub struct CloneRecord {
    pub base: Record,
    pub args: u64,
    pub size: u64,
    /// Address of the parent's and of the child's [`Resume`].
    pub parent: u64,
    pub child: u64,
    /// Not zero when the child must reset its handlers by hand: 1, or 2 where it shares its parent's memory.
    pub clear: u64,
    pub pad: u64,
    pub resume: Resume,
    pub for_child: Resume,
    pub copy: [u64; 16],
}

const _: () = {
    assert!(size_of::<Record>() == 80 && size_of::<Record>() <= 128);
    assert!(offset_of!(CloneRecord, args) == 80);
    assert!(size_of::<Resume>() == 72 && size_of::<CloneRecord>().is_multiple_of(16));
};

/// Where the program's handlers are kept that are entered through `dc_onstack`.
const HANDLERS_ADDR: u64 =
    PROC_PAGE_ADDR + (offset_of!(ProcPage, inherited) + offset_of!(InheritedPage, handlers)) as u64;
/// Generation of the frame's map.
const GENERATION_ADDR: u64 = NODE_PAGE_ADDR + offset_of!(NodePage, seq) as u64;
/// Whether instructions of the program are left alone.
const SITES_OFF_ADDR: u64 =
    PROC_PAGE_ADDR + (offset_of!(ProcPage, inherited) + offset_of!(InheritedPage, sites_off)) as u64;
/// How many handlers were entered.
const HANDLED_ADDR: u64 = PROC_PAGE_ADDR + (offset_of!(ProcPage, own) + offset_of!(OwnPage, handled)) as u64;

global_asm!(
    r#"
    .text
    # From a record in a dead signal frame on the program's stack: it moves up first, below the program's red zone.
    .macro move_up room
    mov rdi, [rsp + 64]
    sub rdi, 128 + \room
    and rdi, -16
    mov rdx, rdi
    mov rsi, rsp
    mov ecx, {record} / 8
    cld
    rep movsq
    mov rsp, rdx
    .endm

    # As dc_trampoline.
    .globl dc_trampoline_up
    .hidden dc_trampoline_up
    .type dc_trampoline_up, @function
dc_trampoline_up:
    .cfi_startproc
    .cfi_escape 0x0f, 4, 0x77, 0xc0, 0x00, 0x06
    .cfi_escape 0x10, 0x10, 2, 0x77, 0x38
    move_up {record}
    jmp dc_trampoline
    .cfi_endproc
    .size dc_trampoline_up, . - dc_trampoline_up

    # As dc_clone3.
    .globl dc_clone3_up
    .hidden dc_clone3_up
    .type dc_clone3_up, @function
dc_clone3_up:
    move_up {clone_record}
    jmp dc_clone3
    .size dc_clone3_up, . - dc_clone3_up

    .globl dc_trampoline
    .hidden dc_trampoline
    .type dc_trampoline, @function
dc_trampoline:
    .cfi_startproc
    # The program's frame: CFA = *(rsp + 64), its stack pointer; rip at rsp + 56.
    .cfi_escape 0x0f, 4, 0x77, 0xc0, 0x00, 0x06
    .cfi_escape 0x10, 0x10, 2, 0x77, 0x38
    .cfi_remember_state
    # What the blob's functions save somewhere: `interrupt::rewind` finds it here, by where the call returns.
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    .cfi_escape 0x0f, 4, 0x77, 0xf0, 0x00, 0x06
    .cfi_escape 0x10, 0x10, 3, 0x77, 0xe8, 0x00
    lea rdi, [rsp + 48]
    call {trapped}
    .globl dc_trapped_after
    .hidden dc_trapped_after
dc_trapped_after:
    # It is not in a call any more.
    mov qword ptr [rsp - 8], 0
    add rsp, 48
    .cfi_restore_state
6:
    mov rdi, [rsp]
    mov rsi, [rsp + 8]
    mov rdx, [rsp + 16]
    mov r10, [rsp + 24]
    mov r8, [rsp + 32]
    mov r9, [rsp + 40]
    mov rcx, [rsp + 56]
    mov r11, [rsp + 72]
    push r11
    popfq
    mov rsp, [rsp + 64]
    jmp rcx
    .cfi_endproc
    .size dc_trampoline, . - dc_trampoline

    .globl dc_site
    .hidden dc_site
    .type dc_site, @function
    # Where a place of the program comes to instead of making its call (sites.rs): rax the number, rcx where it goes on,
    # r11 free, all else as the program has it. Builds the record of dc_trampoline, at the same place of the stack.
dc_site:
    .cfi_startproc
    .cfi_def_cfa rsp, 0
    .cfi_register rip, rcx
    lea rsp, [rsp - 128]
    .cfi_adjust_cfa_offset 128
    pushfq
    .cfi_adjust_cfa_offset 8
    lea r11, [rsp + 136]
    .cfi_def_cfa r11, 0
    sub rsp, {record} - 8
    and rsp, -16
    mov [rsp], rdi
    mov [rsp + 8], rsi
    mov [rsp + 16], rdx
    mov [rsp + 24], r10
    mov [rsp + 32], r8
    mov [rsp + 40], r9
    mov [rsp + 48], rax
    mov [rsp + 56], rcx
    mov [rsp + 64], r11
    mov rcx, [r11 - 136]
    # CFA = *(rsp + 64), rip at rsp + 56.
    .cfi_escape 0x0f, 4, 0x77, 0xc0, 0x00, 0x06
    .cfi_escape 0x10, 0x10, 2, 0x77, 0x38
    mov [rsp + 72], rcx
    mov rdi, rsp
    call {passes}
    test eax, eax
    jnz 7f
    mov rdi, rsp
    call {serve}
    jmp 6b
7:
    # As it is: from the place's own instruction, with every register as the program has it.
    mov rdi, [rsp]
    mov rsi, [rsp + 8]
    mov rdx, [rsp + 16]
    mov r10, [rsp + 24]
    mov r8, [rsp + 32]
    mov r9, [rsp + 40]
    mov rax, [rsp + 48]
    mov rcx, [rsp + 56]
    push [rsp + 72]
    popfq
    mov rsp, [rsp + 64]
    lea rcx, [rcx - 2]
    jmp rcx
    .cfi_endproc
    .size dc_site, . - dc_site

    .globl dc_clone3
    .hidden dc_clone3
    .type dc_clone3, @function
dc_clone3:
    mov rdi, rsp
    call {prepare}
    mov rdi, [rsp + 80]
    mov rsi, [rsp + 88]
    mov r8, [rsp + 96]
    mov r9, [rsp + 104]
    mov r10, [rsp + 112]
    mov eax, 435
    syscall
    test rax, rax
    jz 9f
    jns 2f
    # No child reads it.
    mov r9, [r9 + 64]
    test r9, r9
    jz 2f
    mov qword ptr [r9], 0
    jmp 2f
9:
    mov r8, r9
    test r10, r10
    jz 8f
    # The child, before it goes on: handlers to default by hand, below everything that is in use.
    mov rsp, r8
    sub rsp, 256
    and rsp, -16
    push r8
    push r8
    mov rdi, r10
    call {reset}
    pop r8
    pop r8
    xor eax, eax
8:
    # What it reads from a stack of the blob's it gives back, with its result, which is zero.
    cmp [r8 + 64], rax
    je 2f
    mov rcx, [r8]
    mov rdi, [r8 + 8]
    mov rsi, [r8 + 16]
    mov rdx, [r8 + 24]
    mov r10, [r8 + 32]
    mov r9, [r8 + 48]
    mov rsp, [r8 + 56]
    mov r11, [r8 + 64]
    mov r8, [r8 + 40]
    mov [r11], rax
    jmp rcx
2:
    mov rcx, [r8]
    mov rdi, [r8 + 8]
    mov rsi, [r8 + 16]
    mov rdx, [r8 + 24]
    mov r10, [r8 + 32]
    mov r9, [r8 + 48]
    mov rsp, [r8 + 56]
    mov r8, [r8 + 40]
    jmp rcx
    .size dc_clone3, . - dc_clone3

    .globl dc_onstack
    .hidden dc_onstack
    .type dc_onstack, @function
    # Kernel handler of the program's handlers in a metered node, which counts them, of those with SA_ONSTACK where
    # alternate stacks of ours are in use, and of the C library's own. Entered as a handler is: rdi, rsi, rdx, and rsp at the frame's first word, the restorer.
dc_onstack:
    movabs rax, {handled}
    lock inc qword ptr [rax]
    lea eax, [rdi - {internal}]
    cmp eax, {internals}
    jae 8f
    push rdi
    push rsi
    push rdx
    mov rdi, rdx
    call {rewind}
    pop rdx
    pop rsi
    pop rdi
8:
    movabs rax, {alt}
    mov rcx, rsp
    sub rcx, rax
    cmp rcx, {alt_len}
    jae 3f
    mov rcx, rsp
    sub rsp, 88
    mov r8, rsp
    call {relocate}
    mov rbx, rsp
    mov r12, [rbx + 8]
    mov r13, [rbx + 16]
    mov r14, [rbx + 24]
    mov r15, [rbx + 40]
    lea rsi, [rbx + 32]
    mov rsp, [rbx]
    # From this call on our stack is empty: it reads the mask before a signal can come.
    mov edi, 2
    xor edx, edx
    mov r10d, 8
    mov eax, 14
    syscall
    mov rdi, r15
    mov rsi, r12
    mov rdx, r13
    xor eax, eax
    jmp r14
3:
    movabs rax, {handlers}
    mov ecx, edi
    mov rcx, [rax + 8*rcx]
    xor eax, eax
    jmp rcx
    .size dc_onstack, . - dc_onstack

    .globl dc_guest
    .hidden dc_guest
    .type dc_guest, @function
    # As dc_onstack, for handlers of a guest (signals.rs), where they are: the frame's first word is the handler.
dc_guest:
    movabs rax, {handled}
    lock inc qword ptr [rax]
    mov rcx, [rsp]
    lea rax, [rip + dc_restorer]
    mov [rsp], rax
    xor eax, eax
    jmp rcx
    .size dc_guest, . - dc_guest

    .globl dc_apart
    .hidden dc_apart
    .type dc_apart, @function
    # Calls rdi with rsi on the stack whose end is rdx.
dc_apart:
    .cfi_startproc
    push rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset rbp, 0
    mov rbp, rsp
    .cfi_def_cfa_register rbp
    mov rax, rdi
    mov rdi, rsi
    mov rsp, rdx
    call rax
    mov rsp, rbp
    pop rbp
    .cfi_def_cfa rsp, 8
    ret
    .cfi_endproc
    .size dc_apart, . - dc_apart

    .globl dc_own
    .hidden dc_own
    .type dc_own, @function
    # A call of the blob's own: rdi the number, rsi the arguments. Filters of the program know it by where it returns.
dc_own:
    .cfi_startproc
    mov rax, rdi
    mov r10, [rsi + 24]
    mov r8, [rsi + 32]
    mov r9, [rsi + 40]
    mov rdi, [rsi]
    mov rdx, [rsi + 16]
    mov rsi, [rsi + 8]
    syscall
    .globl dc_own_after
    .hidden dc_own_after
dc_own_after:
    ret
    .cfi_endproc
    .size dc_own, . - dc_own

    .globl diecast_wait_begin
    .globl diecast_wait_end
    .globl dc_wait
    .hidden dc_wait
    .type dc_wait, @function
    # A translated timed wait: rdi = WaitCall. From diecast_wait_begin to diecast_wait_end a change of the frame's rate
    # makes the translation void: before the call the comparison sees it, from there on a kick does (interrupt.rs),
    # which finds in rbx by which generation the time was translated.
dc_wait:
    .cfi_startproc
    push rbx
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset rbx, 0
    mov rbx, [rdi + 56]
    mov rsi, [rdi + 16]
    mov rdx, [rdi + 24]
    mov r10, [rdi + 32]
    mov r8, [rdi + 40]
    mov r9, [rdi + 48]
    movabs rcx, {generation}
    mov rax, [rdi]
    mov rdi, [rdi + 8]
diecast_wait_begin:
    cmp dword ptr [rcx], ebx
    jne 4f
    syscall
diecast_wait_end:
    pop rbx
    .cfi_remember_state
    .cfi_adjust_cfa_offset -8
    .cfi_restore rbx
    ret
4:
    .cfi_restore_state
    mov rax, {restart}
    jmp diecast_wait_end
    .cfi_endproc
    .size dc_wait, . - dc_wait

    .globl dc_restorer
    .hidden dc_restorer
    .type dc_restorer, @function
    # The exact bytes by which unwinders and debuggers know a signal frame.
    nop
dc_restorer:
    .byte 0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05
    .size dc_restorer, . - dc_restorer

    .globl diecast_blob_init
    .type diecast_blob_init, @function
    # Called once by the supervisor in a new image: rbx = InitArgs. Stops with int3, rax = 0 or -errno.
diecast_blob_init:
    mov rdi, rbx
    and rsp, -16
    call {init}
    int3
    ud2
    .size diecast_blob_init, . - diecast_blob_init

    .globl diecast_blob_begin
    .type diecast_blob_begin, @function
    # Where a traced process comes to from the supervisor's instructions at the beginning of its image: rdi = BeginArgs.
    # The image begins as if nothing had been, with all registers zero.
diecast_blob_begin:
    mov rbx, rdi
    and rsp, -16
    call {init}
    test rax, rax
    jnz 5f
    mov rdi, rbx
    call {put_back}
    test rax, rax
    jnz 5f
    mov rcx, [rbx + {entry}]
    mov rsp, [rbx + {entry} + 8]
    push rcx
    xor eax, eax
    xor ebx, ebx
    xor ecx, ecx
    xor edx, edx
    xor esi, esi
    xor edi, edi
    xor ebp, ebp
    xor r8d, r8d
    xor r9d, r9d
    xor r10d, r10d
    xor r11d, r11d
    xor r12d, r12d
    xor r13d, r13d
    xor r14d, r14d
    xor r15d, r15d
    ret
5:
    mov edi, 127
    mov eax, 231
    syscall
    ud2
    .size diecast_blob_begin, . - diecast_blob_begin

    .globl diecast_blob_trace
    .type diecast_blob_trace, @function
    # Where a new image begins whose parent asked in vfork to trace it: rsp = TracedStart. From here on it is traced, and
    # its first instruction waits for its tracer.
diecast_blob_trace:
    movabs rax, {sites_off}
    mov dword ptr [rax], 1
    xor edi, edi
    movabs rsi, {traced_magic}
    mov eax, 101
    syscall
    # The trap must not come before the program's registers are back.
    xor edi, edi
    lea rsi, [rsp + {trap_mask}]
    xor edx, edx
    mov r10d, 8
    mov eax, 14
    syscall
    mov eax, 39
    syscall
    mov ebx, eax
    mov eax, 186
    syscall
    mov edi, ebx
    mov esi, eax
    mov edx, 5
    mov eax, 234
    syscall
    mov eax, 15
    syscall
    ud2
    .size diecast_blob_trace, . - diecast_blob_trace

    .globl diecast_timers
    .globl diecast_timers_done
    .type diecast_timers, @function
    .type diecast_timers_done, @function
    # Called by the supervisor in a stopped process, on the stack of its page: rdi = 0 holds its timers, 1 sets them
    # again. Stops with int3 at diecast_timers_done, rax = 0.
diecast_timers:
    call {timers}
    int3
diecast_timers_done:
    ud2
    .size diecast_timers, . - diecast_timers
"#,
    serve = sym crate::serve::serve,
    trapped = sym crate::serve::trapped,
    passes = sym crate::sites::passes,
    prepare = sym signals::prepare_clone3,
    reset = sym signals::reset_handlers,
    init = sym crate::init::init,
    put_back = sym crate::init::put_back,
    timers = sym crate::held::serve,
    relocate = sym altstack::relocate,
    rewind = sym interrupt::rewind,
    internal = const signals::INTERNAL,
    internals = const signals::INTERNALS,
    record = const size_of::<Record>(),
    clone_record = const size_of::<CloneRecord>(),
    alt = const ALT_ADDR,
    alt_len = const ALT_LEN * ALT_SLOTS as u64,
    handlers = const HANDLERS_ADDR,
    handled = const HANDLED_ADDR,
    generation = const GENERATION_ADDR,
    restart = const RESTART,
    entry = const offset_of!(BeginArgs, entry),
    traced_magic = const TRACED_MAGIC,
    trap_mask = const offset_of!(TracedStart, trap_mask),
    sites_off = const SITES_OFF_ADDR,
);

/// A system call whose time was translated by one generation of the frame's map.
#[repr(C)]
pub struct WaitCall {
    pub nr: u64,
    pub args: [u64; 6],
    pub generation: u64,
}

const _: () = assert!(offset_of!(WaitCall, generation) == 56);

/// Makes the call, or gives [`RESTART`] where its time has to be translated anew.
///
/// # Safety
/// As [`crate::sys::call`].
#[inline(always)]
pub unsafe fn wait(call: &WaitCall) -> Ret {
    let ret: Ret;
    // SAFETY: an ordinary call; what the kernel writes is the caller's promise. A call by its symbol would go through
    // a GOT.
    unsafe { core::arch::asm!("call dc_wait", in("rdi") call, lateout("rax") ret, clobber_abi("C")) };
    ret
}

macro_rules! address_of {
    ($(#[$doc:meta])* $name:ident, $symbol:literal) => {
        $(#[$doc])*
        pub fn $name() -> u64 {
            let a: u64;
            // SAFETY: computes an address, nothing else.
            unsafe { core::arch::asm!(concat!("lea {}, [rip + ", $symbol, "]"), out(reg) a, options(nomem, nostack, pure)) };
            a
        }
    };
}
address_of!(trampoline, "dc_trampoline");
address_of!(clone3_trampoline, "dc_clone3");
address_of!(trampoline_up, "dc_trampoline_up");
address_of!(clone3_trampoline_up, "dc_clone3_up");
address_of!(site_entry, "dc_site");
address_of!(
    /// Where serving a call that came by a signal returns to.
    trapped_after,
    "dc_trapped_after"
);
address_of!(restorer, "dc_restorer");
/// Bytes of it, up to where the instruction pointer is while the kernel serves its rt_sigreturn.
pub const RESTORER_LEN: u64 = 9;
address_of!(onstack_entry, "dc_onstack");
address_of!(guests_entry, "dc_guest");
address_of!(
    /// From here to [`wait_end`] nothing is decided yet.
    wait_begin,
    "diecast_wait_begin"
);
address_of!(
    /// Where a wait has its result.
    wait_end,
    "diecast_wait_end"
);
address_of!(sigsys_entry, "diecast_sigsys");
address_of!(sigtrap_entry, "diecast_sigtrap");
address_of!(sigsegv_entry, "diecast_sigsegv");

address_of!(
    /// Where the instruction pointer is while the kernel serves a call of the blob's own.
    own_call_ip,
    "dc_own_after"
);

/// Makes a call from the one place that filters of the program let through.
#[inline(always)]
pub fn own_call(nr: u64, a: &[u64; 6]) -> Ret {
    let ret: i64;
    // SAFETY: dc_own changes the argument registers, rax, rcx and r11 only; the callers of `sys::own` vouch for what
    // the kernel reads and writes.
    unsafe {
        core::arch::asm!("call dc_own", inlateout("rdi") nr => _, inlateout("rsi") a.as_ptr() => _, out("rdx") _,
            out("r8") _, out("r9") _, out("r10") _, lateout("rax") ret, out("rcx") _, out("r11") _);
    }
    ret
}

/// Calls `work` on the stack that ends at `end`, a multiple of 16.
pub fn apart<T>(work: extern "C" fn(&mut T), with: &mut T, end: u64) {
    // SAFETY: an ordinary call of a function with that argument, on a stack that the caller made for it.
    unsafe {
        core::arch::asm!("call dc_apart", in("rdi") work, in("rsi") core::ptr::from_mut(with), in("rdx") end, clobber_abi("C"));
    }
}

/// Copies bytes upwards, with general registers only.
///
/// # Safety
/// Both ranges are mapped, the target writable, and they don't overlap.
pub unsafe fn copy(from: u64, to: u64, len: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        core::arch::asm!("rep movsb", inout("rsi") from => _, inout("rdi") to => _, inout("rcx") len => _, options(nostack));
    }
}

/// `siginfo_t` as far as it is used.
#[repr(C)]
pub struct SigInfo {
    pub signo: i32,
    pub errno: i32,
    pub code: i32,
    pub pad: i32,
    /// SIGSYS: call address. SIGTRAP of perf: address.
    pub word0: u64,
    /// SIGTRAP of perf: `si_perf_data`.
    pub word1: u64,
}

/// `ucontext_t` as far as it is used.
#[repr(C)]
pub struct UContext {
    pub flags: u64,
    pub link: u64,
    pub stack: [u64; 3],
    pub regs: [u64; 23],
    pub fpstate: u64,
    pub reserved: [u64; 8],
    pub mask: u64,
}

pub mod reg {
    pub const R8: usize = 0;
    pub const R9: usize = 1;
    pub const R10: usize = 2;
    pub const R11: usize = 3;
    pub const R12: usize = 4;
    pub const R13: usize = 5;
    pub const R14: usize = 6;
    pub const R15: usize = 7;
    pub const RBP: usize = 10;
    pub const RDI: usize = 8;
    pub const RSI: usize = 9;
    pub const RBX: usize = 11;
    pub const RDX: usize = 12;
    pub const RAX: usize = 13;
    pub const RCX: usize = 14;
    pub const RSP: usize = 15;
    pub const RIP: usize = 16;
    pub const EFL: usize = 17;
}

/// More than any signal frame: 11,664 bytes with the state of AMX.
const FRAME_LEN_MAX: u64 = 0x1_0000;

/// SIGSYS. Ours: to a trampoline. Everything else: to the program's own disposition.
#[unsafe(no_mangle)]
pub extern "C" fn diecast_sigsys(signo: i32, info: *mut SigInfo, uc: *mut UContext) {
    // SAFETY: the kernel passes valid pointers to a frame that belongs to this handler alone.
    let (code, errno, u) = unsafe { ((*info).code, (*info).errno, &mut *uc) };
    if code != 1 || errno != TRAP_MAGIC as i32 {
        // SAFETY: as above.
        if signals::is_release(unsafe { &*info }) {
            signals::let_in(uc);
        } else {
            signals::chain(signo, info, uc);
        }
        return;
    }
    let r = &mut u.regs;
    let nr = r[reg::RAX];
    let clone = nr as u32 == CLONE3;
    let record = Record {
        rdi: r[reg::RDI],
        rsi: r[reg::RSI],
        rdx: r[reg::RDX],
        r10: r[reg::R10],
        r8: r[reg::R8],
        r9: r[reg::R9],
        nr,
        resume: r[reg::RIP],
        rsp: r[reg::RSP],
        rflags: r[reg::EFL],
    };
    // On the program's own stack the frame begins right below the red zone, with the vector state: sigreturn still
    // needs it. The siginfo is of no use any more.
    let same_stack = r[reg::RSP].wrapping_sub(uc as u64) < FRAME_LEN_MAX;
    let len = if clone { size_of::<CloneRecord>() } else { size_of::<Record>() } as u64;
    let at = if same_stack { info as u64 } else { (r[reg::RSP] - 128 - len) & !15 };
    // SAFETY: a siginfo has 128 bytes; else below the red zone of the interrupted stack, which was live enough to
    // make a call on.
    unsafe { (at as *mut Record).write(record) };
    r[reg::RSP] = at;
    r[reg::RIP] = match (same_stack, clone) {
        (true, false) => trampoline_up(),
        (true, true) => clone3_trampoline_up(),
        (false, false) => trampoline(),
        (false, true) => clone3_trampoline(),
    };
}
