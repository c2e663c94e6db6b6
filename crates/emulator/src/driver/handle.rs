//! Things of the driver as callers name them: numbers that are never given twice, so that one that
//! was destroyed is told from every other.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::code::{Code, INVALID_HANDLE};

/// A thing's name. Null is none's.
pub type Handle = *mut c_void;

static NEXT: AtomicUsize = AtomicUsize::new(0x1000);

/// All things of one kind.
pub struct Handles<T> {
    all: Mutex<Option<HashMap<usize, Arc<T>>>>,
}

impl<T> Handles<T> {
    pub const fn new() -> Self {
        Self { all: Mutex::new(None) }
    }

    fn all(&self) -> MutexGuard<'_, Option<HashMap<usize, Arc<T>>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a thing its name.
    pub fn add(&self, thing: Arc<T>) -> Handle {
        let name = NEXT.fetch_add(1, Ordering::Relaxed);
        self.all().get_or_insert_default().insert(name, thing);
        name as Handle
    }

    /// The thing of a name.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for one that is not, or no longer.
    pub fn get(&self, name: Handle) -> Result<Arc<T>, Code> {
        let all = self.all();
        all.as_ref().and_then(|all| all.get(&(name as usize)).cloned()).ok_or(INVALID_HANDLE)
    }

    /// As [`Handles::get`], and the name is nothing's any more.
    pub fn remove(&self, name: Handle) -> Result<Arc<T>, Code> {
        let mut all = self.all();
        all.as_mut().and_then(|all| all.remove(&(name as usize))).ok_or(INVALID_HANDLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_was_taken_back_is_nothings() {
        let things = Handles::new();
        let (a, b) = (things.add(Arc::new(1)), things.add(Arc::new(2)));
        assert_eq!((things.get(a).as_deref(), things.get(b).as_deref()), (Ok(&1), Ok(&2)));
        assert!(things.remove(a).is_ok());
        let c = things.add(Arc::new(3));
        assert_ne!(a, c);
        assert_eq!(things.get(a).err(), Some(INVALID_HANDLE));
        assert_eq!(things.get(std::ptr::null_mut()).err(), Some(INVALID_HANDLE));
    }
}
