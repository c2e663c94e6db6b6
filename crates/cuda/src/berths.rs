//! Berths in a card's memory, to which cards of the same machine write, that card itself too.
//!
//! A copy is all that there is to it: no card waits for another one. Whose berths they are keeps
//! them as long as anybody may write to them.

use std::sync::Arc;

use backend::Offer;
use backend::berths;

use crate::Cuda;
use crate::device::{Buffer, Device, FOUND_BY_BYTES, Seen};
use crate::rows::Rows;

/// What an offer ends with that is a card's.
const SIGN: &[u8; 16] = b"berths of a card";
/// The driver shares smaller pieces of memory among several.
const BYTES_MIN: u64 = 2 << 20;

/// Berths of this card, or of one that it sees.
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
    /// Into what an offer has behind the memory's own bytes.
    fn write(self, offer: &mut Offer) {
        let words = [self.count, self.rows, self.width].map(u32::to_le_bytes);
        let bytes = words.as_flattened().iter().chain(SIGN);
        offer[FOUND_BY_BYTES..].iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
    }

    fn read(offer: &Offer) -> Result<Self, String> {
        let (sizes, sign) = offer[FOUND_BY_BYTES..].split_at(3 * size_of::<u32>());
        if sign != SIGN {
            return Err("the rank after has berths of another kind of device".into());
        }
        let size = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| sizes[4 * at + i]));
        let (count, rows, width) = (size(0), size(1), size(2));
        berths::check(count as usize, rows as usize, width as usize)?;
        Ok(Self { count, rows, width })
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
}

impl Berths {
    pub(crate) fn new(
        cuda: &Cuda,
        count: usize,
        rows: usize,
        width: usize,
    ) -> Result<(Self, Offer), String> {
        let (device, bytes) = (&cuda.device, berths::check(count, rows, width)?);
        let buffer = Buffer::new(device, "berths of rows", bytes.max(BYTES_MIN).into());
        let buffer = buffer.map_err(|error| error.to_string())?;
        let found = device.found_by(&buffer, cuda.ordinal).map_err(|error| error.to_string())?;
        let mut offer = [0; size_of::<Offer>()];
        offer[..FOUND_BY_BYTES].copy_from_slice(&found);
        let [count, rows, width] = [count, rows, width].map(|value| value as u32);
        let sizes = Sizes { count, rows, width };
        sizes.write(&mut offer);
        let place = Place::Own(buffer);
        // Zeros that are still on their way are no rows.
        device.wait();
        Ok((Self { device: device.clone(), place, sizes }, offer))
    }

    pub(crate) fn find(
        cuda: &Cuda,
        offer: &Offer,
        rows: usize,
        width: usize,
    ) -> Result<(Self, u32), String> {
        let (device, sizes) = (&cuda.device, Sizes::read(offer)?.of(rows, width)?);
        let by = std::array::from_fn(|i| offer[i]);
        let seen = Seen::find(device, &by).map_err(|error| error.to_string())?;
        let place = Place::Seen(seen);
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
        };
        at + 4 * ((berth as usize * most + first) * width) as u64
    }

    pub(crate) fn put(
        &self,
        from: &Rows,
        (first, rows): (usize, usize),
        (berth, at): (u32, usize),
    ) {
        from.holds(first + rows);
        assert_eq!(from.width, self.sizes.width as usize, "{from:?}");
        let (to, row) = (self.at(berth, at, rows), 4 * from.width);
        // SAFETY: rows of the buffer, and of a berth that is as wide and as long.
        unsafe { self.device.copy(to, from.at() + (first * row) as u64, rows * row) };
        self.device.wait();
    }

    pub(crate) fn fetch(&self, berth: u32, (first, rows): (usize, usize), to: &Rows, at: usize) {
        to.holds(at + rows);
        assert_eq!(to.width, self.sizes.width as usize, "{to:?}");
        let (from, row) = (self.at(berth, first, rows), 4 * to.width);
        // SAFETY: as above.
        unsafe { self.device.copy(to.at() + (at * row) as u64, from, rows * row) };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn offers_of_other_devices_and_sizes_past_the_limit_are_refused() {
        let sizes = Sizes { count: 4, rows: 2_048, width: 5_120 };
        let mut offer = [7; size_of::<Offer>()];
        sizes.write(&mut offer);
        assert_eq!(Sizes::read(&offer), Ok(sizes));
        assert_eq!(sizes.of(2_048, 5_120), Ok(sizes));
        assert!(sizes.of(2_049, 5_120).unwrap_err().contains("found 2048 of 5120"));
        assert!(sizes.of(2_048, 5_121).is_err());
        assert_eq!(offer[..FOUND_BY_BYTES], [7; FOUND_BY_BYTES]);
        Sizes { count: u32::MAX, ..sizes }.write(&mut offer);
        assert!(Sizes::read(&offer).unwrap_err().contains("at most"));
        let other = berths::Shared::new(1, 1).offer();
        assert!(Sizes::read(&other).unwrap_err().contains("another kind of device"));
    }
}
