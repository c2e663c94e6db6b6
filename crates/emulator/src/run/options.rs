//! What is left to a card, chosen.

use std::sync::OnceLock;

/// In which order threads run and when copies arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Options {
    pub order: Order,
    /// Copies arrive at once, and not only when they must.
    pub early: bool,
    /// Kernels end at once and do nothing: what is left is the host's own time.
    pub idle: bool,
}

/// Which of the threads that can run is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Forward,
    Reverse,
    /// Another one each time, by a number that is drawn on from.
    Drawn(u64),
}

impl Options {
    /// As `EMULATOR_ORDER` (`forward`, `reverse` or a number), `EMULATOR_ASYNC` (`late` or `early`)
    /// and `EMULATOR_KERNELS` (`run` or `idle`) say.
    ///
    /// # Errors
    /// What they hold, if it is neither.
    pub(crate) fn of_environment() -> Result<Self, String> {
        static FOUND: OnceLock<Result<Options, String>> = OnceLock::new();
        FOUND.get_or_init(Self::read).clone()
    }

    fn read() -> Result<Self, String> {
        let order = std::env::var("EMULATOR_ORDER").unwrap_or_default();
        let order = match order.as_str() {
            "" | "forward" => Order::Forward,
            "reverse" => Order::Reverse,
            drawn => Order::Drawn(drawn.parse().map_err(|_| {
                format!("EMULATOR_ORDER is `{drawn}`: give `forward`, `reverse` or a number")
            })?),
        };
        let early = match std::env::var("EMULATOR_ASYNC").unwrap_or_default().as_str() {
            "" | "late" => false,
            "early" => true,
            other => {
                return Err(format!("EMULATOR_ASYNC is `{other}`: give `late` or `early`"));
            }
        };
        let idle = match std::env::var("EMULATOR_KERNELS").unwrap_or_default().as_str() {
            "" | "run" => false,
            "idle" => true,
            other => {
                return Err(format!("EMULATOR_KERNELS is `{other}`: give `run` or `idle`"));
            }
        };
        Ok(Self { order, early, idle })
    }
}

impl Order {
    /// Which of the set bits of `ready` is next.
    pub(super) fn lane(&mut self, ready: u32) -> u32 {
        match self {
            Self::Forward => ready.trailing_zeros(),
            Self::Reverse => 31 - ready.leading_zeros(),
            Self::Drawn(_) => {
                let by = self.draw(32) as u32;
                (ready.rotate_right(by).trailing_zeros() + by) % 32
            }
        }
    }

    /// The warp or block to look at first, of `count`, after `current`.
    pub(super) fn first(&mut self, current: usize, count: usize) -> usize {
        match self {
            Self::Forward => (current + 1) % count,
            Self::Reverse => (current + count - 1) % count,
            Self::Drawn(_) => self.draw(count as u64) as usize,
        }
    }

    /// Whether another warp is to run though this one could go on.
    pub(super) fn leaves(&mut self) -> bool {
        matches!(self, Self::Drawn(_)) && self.draw(8) == 0
    }

    /// Below `end`; 0 if nothing is drawn.
    fn draw(&mut self, end: u64) -> u64 {
        let Self::Drawn(state) = self else { return 0 };
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((x ^ x >> 31) >> 32) * end) >> 32
    }
}
