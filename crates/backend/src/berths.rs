//! Berths: room for the rows of rounds in flight, which come from another rank's device by itself.
//!
//! [`None`] is that of a device which gives rows to its host alone, [`Shared`] that of the stages
//! of one process, in the host's memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// By what another rank's device finds berths; the device's own words.
pub type Offer = [u8; 128];

/// Whether nobody is to be waited for any more; asked again and again, from any thread.
pub type Over = Arc<dyn Fn() -> bool + Send + Sync>;

/// Most bytes of a rank's berths in one life of the ring.
pub const BERTHS_BYTES_MAX: u64 = 2 << 30;

/// Refuses more berths than a rank may have.
///
/// # Errors
/// In words, with both numbers.
pub fn check(count: usize, rows: usize, width: usize) -> Result<u64, String> {
    let bytes = 4 * count as u128 * rows as u128 * width as u128;
    if count > 0 && bytes <= u128::from(BERTHS_BYTES_MAX) {
        return Ok(bytes as u64);
    }
    Err(format!("{count} berths of {rows} rows take {bytes} bytes, at most {BERTHS_BYTES_MAX}"))
}

/// No berths at all.
#[derive(Clone, Copy, Debug)]
pub enum None {}

type Places = Vec<Mutex<Place>>;

/// One berth. Rows that were put are not there before they were sent and have come, as where they
/// pass a link of the devices' own.
#[derive(Debug)]
struct Place {
    put: Vec<f32>,
    sent: Option<Vec<f32>>,
    lies: Vec<f32>,
}

impl Place {
    fn new(values: usize) -> Self {
        Self { put: vec![f32::NAN; values], sent: Option::None, lies: vec![f32::NAN; values] }
    }
}

/// Berths by their number, while somebody has them.
static ALL: Mutex<BTreeMap<u64, Weak<Places>>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Berths in memory that the stages of a process share.
#[derive(Clone, Debug)]
pub struct Shared {
    number: u64,
    places: Arc<Places>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// `count` berths of as many values.
    pub fn new(count: usize, values: usize) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let places: Places = (0..count).map(|_| Mutex::new(Place::new(values))).collect();
        let places = Arc::new(places);
        let mut all = locked(&ALL);
        all.retain(|_, places| places.strong_count() > 0);
        all.insert(number, Arc::downgrade(&places));
        Self { number, places }
    }

    /// By what [`Shared::find`] finds them.
    pub fn offer(&self) -> Offer {
        let mut offer = [0; size_of::<Offer>()];
        offer[..8].copy_from_slice(&self.number.to_le_bytes());
        offer
    }

    /// Berths of this process, of as many values each.
    ///
    /// # Errors
    /// Berths that are not there any more, or never were; none at all, or others in size.
    pub fn find(offer: &Offer, values: usize) -> Result<Self, String> {
        let number = u64::from_le_bytes(std::array::from_fn(|i| offer[i]));
        let places = locked(&ALL).get(&number).and_then(Weak::upgrade);
        let places = places.ok_or_else(|| format!("no berths {number}"))?;
        let found: Vec<usize> = places.iter().map(|place| locked(place).lies.len()).collect();
        if found.is_empty() || found.iter().any(|found| *found != values) {
            return Err(format!("berths {number}: expected {values} values each, found {found:?}"));
        }
        Ok(Self { number, places })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    fn place(&self, berth: u32) -> MutexGuard<'_, Place> {
        locked(&self.places[berth as usize])
    }

    /// Puts values of a berth from `at` on.
    pub fn put(&self, berth: u32, at: usize, values: &[f32]) {
        self.place(berth).put[at..at + values.len()].copy_from_slice(values);
    }

    /// Sends the first `count` values of a berth; those that were not put since are NaN.
    ///
    /// # Errors
    /// A berth whose values were not taken.
    pub fn send(&self, berth: u32, count: usize) -> Result<(), String> {
        let place = &mut *self.place(berth);
        if place.sent.is_some() {
            return Err("the rows before have not been taken".into());
        }
        place.sent = Some(place.put[..count].to_vec());
        place.put.fill(f32::NAN);
        Ok(())
    }

    /// Has the first `count` values of a berth come.
    ///
    /// # Errors
    /// None that were sent, or not as many.
    pub fn come(&self, berth: u32, count: usize) -> Result<(), String> {
        let place = &mut *self.place(berth);
        let sent = place.sent.take().ok_or("no rows were sent")?;
        if sent.len() != count {
            return Err(format!("expected {count} values, found {}", sent.len()));
        }
        place.lies.fill(f32::NAN);
        place.lies[..count].copy_from_slice(&sent);
        Ok(())
    }

    /// Reads values of a berth from `at` on.
    pub fn fetch(&self, berth: u32, at: usize, values: &mut [f32]) {
        values.copy_from_slice(&self.place(berth).lies[at..at + values.len()]);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn whoever_was_told_of_berths_writes_to_them_until_their_owner_ends() {
        let own = Shared::new(2, 4);
        let before = Shared::find(&own.offer(), 4).unwrap();
        before.put(1, 2, &[7.0, 8.0]);
        before.put(1, 0, &[5.0, 6.0]);
        let fetched = || {
            let mut values = [0.0; 3];
            own.fetch(1, 1, &mut values);
            values.map(f32::to_bits)
        };
        let nothing = [f32::NAN; 3].map(f32::to_bits);
        assert_eq!((fetched(), own.count()), (nothing, 2));
        before.send(1, 4).unwrap();
        assert_eq!(fetched(), nothing);
        own.come(1, 4).unwrap();
        assert_eq!(fetched(), [6.0, 7.0, 8.0].map(f32::to_bits));
        let offer = own.offer();
        drop((own, before));
        assert!(Shared::find(&offer, 4).is_err());
    }

    #[test]
    fn rows_that_were_not_sent_or_not_taken_or_are_others_are_refused() {
        let own = Shared::new(1, 4);
        assert!(own.come(0, 4).unwrap_err().contains("no rows were sent"));
        own.send(0, 3).unwrap();
        assert!(own.send(0, 3).unwrap_err().contains("not been taken"));
        assert!(own.come(0, 4).unwrap_err().contains("expected 4 values, found 3"));
        own.send(0, 4).unwrap();
        own.come(0, 4).unwrap();
        let mut values = [0.0; 4];
        own.fetch(0, 0, &mut values);
        assert!(values.iter().all(|value| value.is_nan()), "nothing was put: {values:?}");
    }

    #[test]
    fn berths_of_another_size_are_not_written_to() {
        for (count, values) in [(2, 3), (2, 5), (0, 4)] {
            let own = Shared::new(count, values);
            let error = Shared::find(&own.offer(), 4).unwrap_err();
            assert!(error.contains("expected 4 values each"), "{error}");
        }
    }

    #[test]
    fn berths_have_a_limit() {
        let rows = BERTHS_BYTES_MAX as usize / 4 / 4096;
        assert_eq!(check(1, rows, 4096), Ok(BERTHS_BYTES_MAX));
        assert!(check(1, rows + 1, 4096).unwrap_err().contains("at most"));
        assert!(check(0, rows, 4096).is_err());
    }
}
