//! Memory: taken, freed, named, filled and copied.

use std::ffi::{c_uint, c_void};

use super::put;
use crate::driver::card;
use crate::driver::code::{CAPTURE_UNSUPPORTED, Code, INVALID_VALUE, given};
use crate::driver::handle::Handle;
use crate::driver::memory::{self, Of};
use crate::driver::stream;
use crate::driver::work::Work;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, all: *mut usize) -> Code {
    given(card::sound().and_then(|card| {
        let room = card.room();
        // SAFETY: the caller's places.
        unsafe { put(free, room.0).and(put(all, room.1)) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(at: *mut u64, bytes: usize) -> Code {
    let taken = card::sound().and_then(|card| card.take(bytes));
    // SAFETY: the caller's place.
    given(taken.and_then(|taken| unsafe { put(at, taken as u64) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(at: u64) -> Code {
    given(card::sound().and_then(|card| card.give_back(Of::Card(card.number), at as usize)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(at: *mut *mut c_void, bytes: usize, _flags: c_uint) -> Code {
    let taken = card::sound().and_then(|_| memory::take(Of::Host, bytes));
    // SAFETY: the caller's place.
    given(taken.and_then(|taken| unsafe { put(at, taken as *mut c_void) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(at: *mut c_void) -> Code {
    given(card::sound().and_then(|card| card.give_back(Of::Host, at as usize)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuIpcGetMemHandle(name: *mut [u8; 64], at: u64) -> Code {
    let named = card::sound().and_then(|_| memory::name(at as usize));
    // SAFETY: the caller's place.
    given(named.and_then(|named| unsafe { put(name, named) }))
}

/// 64 bytes by value, as the vendor's header has a memory's name.
#[repr(C)]
struct Name([u8; 64]);

#[unsafe(no_mangle)]
unsafe extern "C" fn cuIpcOpenMemHandle_v2(at: *mut u64, name: Name, _flags: c_uint) -> Code {
    let opened = card::sound().and_then(|_| memory::open(&name.0));
    // SAFETY: the caller's place.
    given(opened.and_then(|opened| unsafe { put(at, opened as u64) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuIpcCloseMemHandle(at: u64) -> Code {
    given(card::sound().and_then(|card| card.give_back(Of::Other, at as usize)))
}

/// What no buffer holds is refused, in words on standard error too.
fn held(what: &str, at: u64, bytes: usize) -> Result<usize, Code> {
    let at = at as usize;
    if bytes > 0 && memory::owner(at, bytes).is_none() {
        super::super::say(&format!("{what} of {bytes} bytes: {}", memory::words(at)));
        return Err(INVALID_VALUE);
    }
    Ok(at)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    bytes: usize,
    stream: Handle,
) -> Code {
    given(stream::current(stream).and_then(|stream| {
        let to = held("a copy to the card", to, bytes)?;
        let pinned = memory::owner(from as usize, bytes).is_some();
        let work = if pinned {
            Work::Copy { to, from: from as usize, bytes }
        } else if stream.is_captured() {
            return Err(CAPTURE_UNSUPPORTED);
        } else {
            // SAFETY: as many bytes of the caller's, which may change once the call is over.
            let data = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) };
            Work::Put { to, data: data.into() }
        };
        stream.ask(work)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: u64,
    bytes: usize,
    stream: Handle,
) -> Code {
    given(stream::current(stream).and_then(|stream| {
        let from = held("a copy from the card", from, bytes)?;
        let pinned = memory::owner(to as usize, bytes).is_some();
        if !pinned && stream.is_captured() {
            return Err(CAPTURE_UNSUPPORTED);
        }
        stream.ask(Work::Copy { to: to as usize, from, bytes })?;
        if pinned { Ok(()) } else { stream.finish() }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) -> Code {
    given(stream::current(stream).and_then(|stream| {
        let to = held("a copy", to, bytes)?;
        let from = held("a copy", from, bytes)?;
        stream.ask(Work::Copy { to, from, bytes })
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(at: u64, byte: u8, bytes: usize, stream: Handle) -> Code {
    given(stream::current(stream).and_then(|stream| {
        let at = held("a fill", at, bytes)?;
        stream.ask(Work::Fill { at, byte, bytes })
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD32Async(at: u64, word: c_uint, count: usize, stream: Handle) -> Code {
    given(stream::current(stream).and_then(|stream| {
        let bytes = count.checked_mul(4).filter(|_| at.is_multiple_of(4)).ok_or(INVALID_VALUE)?;
        let at = held("a fill", at, bytes)?;
        stream.ask(Work::FillWords { at, word, count })
    }))
}
