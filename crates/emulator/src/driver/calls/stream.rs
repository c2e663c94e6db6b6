//! Streams, events, words in memory, and captures.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use super::put;
use crate::driver::card;
use crate::driver::code::{Code, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_READY, given};
use crate::driver::handle::{Handle, Handles};
use crate::driver::memory;
use crate::driver::stream::{self, Event, STREAMS, Stream};
use crate::driver::work::{How, Work};

static EVENTS: Handles<Event> = Handles::new();
static GRAPHS: Handles<Arc<[Work]>> = Handles::new();
/// Those that are ready to be launched.
static READY: Handles<Arc<[Work]>> = Handles::new();

const NO_TIMING: c_uint = 2;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut Handle, _flags: c_uint) -> Code {
    let made = card::sound().and_then(Stream::start);
    // SAFETY: the caller's place.
    given(made.and_then(|made| unsafe { put(stream, STREAMS.add(made)) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut Handle,
    flags: c_uint,
    _priority: c_int,
) -> Code {
    // SAFETY: as there.
    unsafe { cuStreamCreate(stream, flags) }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: Handle) -> Code {
    given(STREAMS.remove(stream).map(|stream| stream.end()))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: Handle) -> Code {
    given(STREAMS.get(stream).and_then(|stream| stream.finish()))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) -> Code {
    given(STREAMS.get(stream).and_then(|stream| stream.hold(&*EVENTS.get(event)?)))
}

/// A word of a buffer.
fn word_at(at: u64) -> Result<usize, Code> {
    let at = at as usize;
    let is_held = at.is_multiple_of(4) && memory::owner(at, 4).is_some();
    is_held.then_some(at).ok_or(INVALID_VALUE)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWriteValue32_v2(
    stream: Handle,
    at: u64,
    word: c_uint,
    _flags: c_uint,
) -> Code {
    given(STREAMS.get(stream).and_then(|stream| {
        let at = word_at(at)?;
        stream.ask(Work::Write { at, word })
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitValue32_v2(stream: Handle, at: u64, word: c_uint, flags: c_uint) -> Code {
    given(STREAMS.get(stream).and_then(|stream| {
        let how = match flags & 3 {
            0 => How::NoLess,
            1 => How::Equal,
            2 => How::And,
            _ => How::Nor,
        };
        let at = word_at(at)?;
        stream.ask(Work::Wait { at, word, how })
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut Handle, flags: c_uint) -> Code {
    let made = card::sound().map(|_| Arc::new(Event::new(flags & NO_TIMING == 0)));
    // SAFETY: the caller's place.
    given(made.and_then(|made| unsafe { put(event, EVENTS.add(made)) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> Code {
    given(stream::current(stream).and_then(|stream| stream.record(&*EVENTS.get(event)?)))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: Handle) -> Code {
    given(EVENTS.get(event).and_then(|event| {
        let card = card::sound()?;
        event.mark()?.into_iter().for_each(|mark| mark.hold(card));
        card.check()
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: Handle) -> Code {
    given(EVENTS.get(event).and_then(|event| {
        card::sound()?;
        let is_passed = event.mark()?.is_none_or(|mark| mark.at().is_some());
        is_passed.then_some(()).ok_or(NOT_READY)
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime(ms: *mut f32, from: Handle, to: Handle) -> Code {
    let mark = |event: Handle| {
        let event = EVENTS.get(event)?;
        event.mark()?.filter(|_| event.is_timed).ok_or(INVALID_HANDLE)
    };
    given(card::sound().and_then(|_| {
        let (from, to) = (mark(from)?, mark(to)?);
        let (from, to) = (from.at().ok_or(NOT_READY)?, to.at().ok_or(NOT_READY)?);
        let passed = match to.checked_duration_since(from) {
            Some(passed) => passed.as_secs_f32(),
            None => -from.duration_since(to).as_secs_f32(),
        };
        // SAFETY: the caller's place.
        unsafe { put(ms, 1e3 * passed) }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: Handle) -> Code {
    given(EVENTS.remove(event).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(stream: Handle, _mode: c_uint) -> Code {
    given(STREAMS.get(stream).and_then(|stream| stream.capture()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> Code {
    let work = STREAMS.get(stream).and_then(|stream| stream.captured());
    // SAFETY: the caller's place.
    given(work.and_then(|work| unsafe { put(graph, GRAPHS.add(Arc::new(work))) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphInstantiateWithFlags(
    ready: *mut Handle,
    graph: Handle,
    _flags: u64,
) -> Code {
    let work = GRAPHS.get(graph);
    // SAFETY: the caller's place.
    given(work.and_then(|work| unsafe { put(ready, READY.add(work)) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphLaunch(ready: Handle, stream: Handle) -> Code {
    given(READY.get(ready).and_then(|work| {
        let stream = STREAMS.get(stream)?;
        let is_own = card::current()?.number == stream.card.number;
        is_own.then_some(()).ok_or(INVALID_CONTEXT)?;
        stream.ask(Work::Graph((*work).clone()))
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecDestroy(ready: Handle) -> Code {
    given(READY.remove(ready).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphDestroy(graph: Handle) -> Code {
    given(GRAPHS.remove(graph).map(drop))
}
