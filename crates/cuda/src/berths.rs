//! Berths on a card: memory to which cards of the same machine write, that card itself too, or that
//! NCCL carries rows to ([`crate::courier`]).
//!
//! By memory a copy is all that there is to it, and no card waits for another one: whose berths
//! they are keeps them as long as anybody may write to them.

use std::sync::Arc;

use backend::berths;
use backend::{Offer, Over};

use crate::Cuda;
use crate::courier::{Courier, Greeting};
use crate::device::{Buffer, Device, FOUND_BY_BYTES, Seen};
use crate::rows::Rows;

/// What an offer ends with that is a card's, and what a courier's greeting does.
const SIGN: &[u8; 16] = b"berths of a card";
/// Bytes of sizes with it.
const SIZES_BYTES: usize = 28;
/// The driver shares smaller pieces of memory among several.
const BYTES_MIN: u64 = 2 << 20;

/// Berths of this card, or of one that it finds.
pub struct Berths {
    device: Arc<Device>,
    place: Place,
    sizes: Sizes,
}

/// How many berths of how many rows of how many values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    count: u32,
    rows: u32,
    width: u32,
}

impl Sizes {
    fn bytes(self) -> [u8; SIZES_BYTES] {
        let words = [self.count, self.rows, self.width].map(u32::to_le_bytes);
        let mut bytes = words.as_flattened().iter().chain(SIGN).copied();
        std::array::from_fn(|_| bytes.next().unwrap_or(0))
    }

    fn read(bytes: &[u8]) -> Result<Self, String> {
        let (sizes, sign) = bytes.split_at(3 * size_of::<u32>());
        if sign != SIGN {
            return Err("the rank after has berths of another kind of device".into());
        }
        let size = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| sizes[4 * at + i]));
        let (count, rows, width) = (size(0), size(1), size(2));
        berths::check(count as usize, rows as usize, width as usize)?;
        Ok(Self { count, rows, width })
    }

    fn greeting(self) -> Greeting {
        let bytes = self.bytes();
        let word =
            |at: usize| std::array::from_fn(|i| bytes.get(4 * at + i).map_or(0, |byte| *byte));
        std::array::from_fn(|at| u32::from_le_bytes(word(at)))
    }

    fn heard(greeting: &Greeting) -> Result<Self, String> {
        Self::read(&greeting.map(u32::to_le_bytes).as_flattened()[..SIZES_BYTES])
    }

    /// Places, and their bytes.
    fn places(self) -> (usize, u128) {
        let [count, rows, width] = [self.count, self.rows, self.width].map(u128::from);
        (self.count as usize, 4 * count * rows * width)
    }

    /// Refuses others than those of `rows` rows of `width` values.
    fn of(self, rows: usize, width: usize) -> Result<Self, String> {
        if (self.rows as usize, self.width as usize) == (rows, width) {
            return Ok(self);
        }
        let found = format!("{} of {}", self.rows, self.width);
        Err(format!("berths of the rank after: expected {rows} rows of {width}, found {found}"))
    }
}

enum Place {
    Own(Buffer),
    Seen(Seen),
    Carried(Courier),
}

impl Berths {
    pub(crate) fn new(
        cuda: &Cuda,
        (count, rows, width): (usize, usize, usize),
        over: Over,
    ) -> Result<(Self, Offer), String> {
        let (device, bytes) = (&cuda.device, berths::check(count, rows, width)?);
        let [count, rows, width] = [count, rows, width].map(|value| value as u32);
        let sizes = Sizes { count, rows, width };
        if let Some(mail) = cuda.mail.get() {
            let made = Courier::own(cuda, mail, &sizes.greeting(), sizes.places(), over);
            let (courier, offer) = made.map_err(words)?;
            let place = Place::Carried(courier);
            return Ok((Self { device: device.clone(), place, sizes }, offer));
        }
        let buffer = Buffer::new(device, "berths of rows", bytes.max(BYTES_MIN).into());
        let buffer = buffer.map_err(words)?;
        let mut offer = [0; size_of::<Offer>()];
        let found = device.found_by(&buffer, cuda.ordinal).map_err(words)?;
        offer[..FOUND_BY_BYTES].copy_from_slice(&found);
        offer[FOUND_BY_BYTES..].copy_from_slice(&sizes.bytes());
        // Zeros that are still on their way are no rows.
        device.wait();
        Ok((Self { device: device.clone(), place: Place::Own(buffer), sizes }, offer))
    }

    pub(crate) fn find(
        cuda: &Cuda,
        offer: &Offer,
        (rows, width): (usize, usize),
        over: Over,
    ) -> Result<(Self, u32), String> {
        let (device, said) = (&cuda.device, Sizes::read(&offer[FOUND_BY_BYTES..]));
        let (place, sizes) = match cuda.mail.get() {
            Some(_) if said.is_ok() => {
                let words = "the rank after passes rows by its card's memory, this one by NCCL";
                return Err(format!("{words}; give both the same --exchange"));
            }
            Some(mail) => {
                let (courier, greeting) = Courier::find(cuda, mail, offer, over).map_err(words)?;
                let sizes = Sizes::heard(&greeting)?.of(rows, width)?;
                let courier = courier.with_places(device, sizes.places()).map_err(words)?;
                (Place::Carried(courier), sizes)
            }
            None => {
                let sizes = said?.of(rows, width)?;
                let by = std::array::from_fn(|i| offer[i]);
                (Place::Seen(Seen::find(device, &by).map_err(words)?), sizes)
            }
        };
        Ok((Self { device: device.clone(), place, sizes }, sizes.count))
    }

    /// The address of a row of a berth, from which on there are as many as said.
    fn at(&self, berth: u32, first: usize, rows: usize) -> u64 {
        let Sizes { count, rows: most, width } = self.sizes;
        let (most, width) = (most as usize, width as usize);
        assert!(berth < count && first + rows <= most, "{first} + {rows} of berth {berth}");
        let at = match &self.place {
            Place::Own(buffer) => buffer.at(),
            Place::Seen(seen) => seen.at(),
            Place::Carried(courier) => courier.at(),
        };
        at + 4 * ((berth as usize * most + first) * width) as u64
    }

    pub(crate) fn put(
        &self,
        from: &Rows,
        (first, rows): (usize, usize),
        (berth, at): (u32, usize),
    ) -> Result<(), String> {
        from.holds(first + rows);
        assert_eq!(from.width, self.sizes.width as usize, "{from:?}");
        let (to, row) = (self.at(berth, at, rows), 4 * from.width);
        if let Place::Carried(courier) = &self.place {
            courier.free(berth as usize).map_err(words)?;
        }
        // SAFETY: rows of the buffer, and of a berth that is as wide and as long.
        unsafe { self.device.copy(to, from.at() + (first * row) as u64, rows * row) };
        Ok(())
    }

    pub(crate) fn send(&self, berth: u32, values: usize) -> Result<(), String> {
        let at = self.at(berth, 0, self.whole_rows(values));
        if let Place::Carried(courier) = &self.place {
            courier.send(berth as usize, at, values).map_err(words)?;
        }
        self.device.wait();
        Ok(())
    }

    pub(crate) fn come(&self, berth: u32, values: usize) -> Result<(), String> {
        let at = self.at(berth, 0, self.whole_rows(values));
        match &self.place {
            Place::Carried(courier) => courier.come(berth as usize, at, values).map_err(words),
            _ => Ok(()),
        }
    }

    /// Ends what is on its way; whether nobody else writes here.
    pub(crate) fn part(&self) -> bool {
        match &self.place {
            Place::Carried(courier) => courier.end(),
            _ => return false,
        }
        true
    }

    fn whole_rows(&self, values: usize) -> usize {
        let width = self.sizes.width as usize;
        assert!(values.is_multiple_of(width), "{values} values of rows of {width}");
        values / width
    }

    pub(crate) fn fetch(&self, berth: u32, (first, rows): (usize, usize), to: &Rows, at: usize) {
        to.holds(at + rows);
        assert_eq!(to.width, self.sizes.width as usize, "{to:?}");
        let (from, row) = (self.at(berth, first, rows), 4 * to.width);
        // SAFETY: as above.
        unsafe { self.device.copy(to.at() + (at * row) as u64, from, rows * row) };
    }
}

fn words(error: impl ToString) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn offers_of_other_devices_and_sizes_past_the_limit_are_refused() {
        let sizes = Sizes { count: 4, rows: 2_048, width: 5_120 };
        assert_eq!(Sizes::read(&sizes.bytes()), Ok(sizes));
        assert_eq!(Sizes::heard(&sizes.greeting()), Ok(sizes));
        assert_eq!(sizes.places(), (4, 4 * 4 * 2_048 * 5_120));
        assert_eq!(sizes.of(2_048, 5_120), Ok(sizes));
        assert!(sizes.of(2_049, 5_120).unwrap_err().contains("found 2048 of 5120"));
        assert!(sizes.of(2_048, 5_121).is_err());
        let many = Sizes { count: u32::MAX, ..sizes };
        assert!(Sizes::read(&many.bytes()).unwrap_err().contains("at most"));
        assert!(Sizes::heard(&many.greeting()).unwrap_err().contains("at most"));
        let other = berths::Shared::new(1, 1).offer();
        let error = Sizes::read(&other[FOUND_BY_BYTES..]).unwrap_err();
        assert!(error.contains("another kind of device"), "{error}");
    }
}
