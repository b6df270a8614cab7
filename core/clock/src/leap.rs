//! Leap seconds, by the kernel's rules: announced by a bit of the status, at the end of the day in UTC.

const DAY_S: i64 = 86_400;
const STA_INS: u32 = 0x10;
const STA_DEL: u32 = 0x20;

/// Where a clock is with a leap second; the numbers are those of adjtimex's result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum LeapState {
    #[default]
    None = 0,
    /// A second will be inserted.
    Inserts = 1,
    /// A second will be left out.
    Deletes = 2,
    /// The inserted second passes.
    Passes = 3,
    /// It is over, and its announcement still stands.
    Over = 4,
}

impl LeapState {
    /// The state with this number; none for any other.
    pub const fn of(number: u32) -> LeapState {
        match number {
            1 => LeapState::Inserts,
            2 => LeapState::Deletes,
            3 => LeapState::Passes,
            4 => LeapState::Over,
            _ => LeapState::None,
        }
    }
}

/// A clock's leap second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leap {
    pub state: LeapState,
    /// REALTIME, seconds: when it was announced; once it happened, when it is over.
    pub since_s: i64,
    /// REALTIME at which the clock jumps, seconds; [`Leap::NEVER`] when it does not.
    pub due_s: i64,
}

impl Leap {
    pub const NEVER: i64 = i64::MAX;

    pub const fn none() -> Leap {
        Leap { state: LeapState::None, since_s: 0, due_s: Leap::NEVER }
    }

    /// How far the clock jumps when the second is due, s.
    pub const fn jump_s(state: LeapState) -> i64 {
        if matches!(state, LeapState::Deletes) { 1 } else { -1 }
    }

    /// The state after the jump.
    pub const fn after(state: LeapState) -> LeapState {
        if matches!(state, LeapState::Deletes) { LeapState::Over } else { LeapState::Passes }
    }

    /// Time went on.
    pub fn age(&mut self, now_s: i64) {
        if self.state == LeapState::Passes && now_s >= self.since_s {
            self.state = LeapState::Over;
        }
    }

    /// The status was set.
    pub fn follow(&mut self, status: u32, now_s: i64) {
        let (inserts, deletes) = (status & STA_INS != 0, status & STA_DEL != 0);
        let void = match self.state {
            LeapState::Inserts => !inserts,
            LeapState::Deletes => !deletes,
            LeapState::Over => !inserts && !deletes,
            LeapState::None | LeapState::Passes => false,
        };
        if void {
            *self = Leap::none();
        }
        if self.state == LeapState::None && (inserts || deletes) {
            let (state, of_day) =
                if inserts { (LeapState::Inserts, now_s) } else { (LeapState::Deletes, now_s.saturating_add(1)) };
            *self = Leap { state, since_s: now_s, due_s: now_s.saturating_add(DAY_S - of_day.rem_euclid(DAY_S)) };
        }
    }

    /// As adjtimex says it: an announcement takes effect with the next second.
    pub const fn shown(&self, now_s: i64) -> u32 {
        match self.state {
            LeapState::Inserts | LeapState::Deletes if now_s <= self.since_s => 0,
            state => state as u32,
        }
    }
}
