//! Cards and contexts.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::put;
use crate::driver::card::{self, Card};
use crate::driver::code::{self, Code, INVALID_VALUE, NOT_FOUND, given};
use crate::driver::handle::Handle;

const BLOCK_SHARED: c_int = 97;
const COMPUTE_MAJOR: c_int = 75;
const COMPUTE_MINOR: c_int = 76;
const MULTIPROCESSORS: c_int = 16;
const INTEGRATED: c_int = 18;

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> Code {
    given(card::cards().map(drop))
}

/// Asked for by the vendor's compiler, which does without.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetExportTable(table: *mut *const c_void, _which: *const c_void) -> Code {
    // SAFETY: the caller's place.
    given(unsafe { put(table, std::ptr::null()) }.and(Err(NOT_FOUND)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(result: Code, words: *mut *const c_char) -> Code {
    let found = code::words(result);
    // SAFETY: the caller's place for a string; these are static.
    let done = unsafe { put(words, found.map_or(std::ptr::null(), |words| words.as_ptr())) };
    given(done.and(found.map(drop).ok_or(INVALID_VALUE)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Code {
    // SAFETY: the caller's place.
    given(card::cards().and_then(|cards| unsafe { put(count, cards.len() as c_int) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Code {
    // SAFETY: the caller's place.
    given(card::card(ordinal).and_then(|card| unsafe { put(device, card.number as c_int) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, room: c_int, device: c_int) -> Code {
    given(card::card(device).and_then(|card| {
        let (text, room) = (card.name(), usize::try_from(room).unwrap_or(0));
        if name.is_null() || room == 0 {
            return Err(INVALID_VALUE);
        }
        let bytes = text.len().min(room - 1);
        // SAFETY: the caller's room, one of it for the 0.
        unsafe {
            name.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), bytes);
            name.add(bytes).write(0);
        }
        Ok(())
    }))
}

fn attribute(card: &Card, which: c_int) -> Result<c_int, Code> {
    let kind = &card.kind;
    Ok(match which {
        COMPUTE_MAJOR => kind.capability.0,
        COMPUTE_MINOR => kind.capability.1,
        MULTIPROCESSORS => kind.multiprocessors as c_int,
        INTEGRATED => 0,
        BLOCK_SHARED => kind.shared_max() as c_int,
        _ => return Err(INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, which: c_int, device: c_int) -> Code {
    let found = card::card(device).and_then(|card| attribute(card, which));
    // SAFETY: the caller's place.
    given(found.and_then(|found| unsafe { put(value, found) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) -> Code {
    // SAFETY: the caller's place.
    given(card::card(device).and_then(|card| unsafe { put(uuid, card.uuid()) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceCanAccessPeer(may: *mut c_int, device: c_int, other: c_int) -> Code {
    let both = card::card(device).and_then(|card| Ok((card, card::card(other)?)));
    let may_reach = both.map(|(card, other)| c_int::from(card.number != other.number));
    // SAFETY: the caller's place.
    given(may_reach.and_then(|found| unsafe { put(may, found) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) -> Code {
    // SAFETY: the caller's place.
    given(card::card(device).and_then(|card| unsafe { put(context, card.context()) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: Handle) -> Code {
    given(card::set_current(context))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetDevice(device: *mut c_int) -> Code {
    // SAFETY: the caller's place.
    given(card::current().and_then(|card| unsafe { put(device, card.number as c_int) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxEnablePeerAccess(context: Handle, _flags: c_uint) -> Code {
    given(card::sound().and_then(|card| card.reach(card::of_context(context)?)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, most: *mut c_int) -> Code {
    given(card::sound().and_then(|_| {
        // SAFETY: the caller's places.
        unsafe { put(least, 0).and(put(most, -5)) }
    }))
}
