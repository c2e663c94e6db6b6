//! Exchanges by a library: how its ends meet, when they do not, and what becomes of a loss.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use shard::{Carrier, Direct, Group, Id};
use stage::{Exchange, ExchangeError, Member};

use crate::exchange::{end, joined};

/// What a double's ends have in common, as a library's have the machine.
#[derive(Default)]
struct Hub {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    drawn: u8,
    /// Of each id who has come.
    here: HashMap<Id, Vec<usize>>,
    /// Values on their way, by id, number, giver and taker.
    values: HashMap<(Id, u64, usize, usize), Vec<f32>>,
    aborts: usize,
}

/// An end of the double.
struct End {
    hub: Arc<Hub>,
    at: Option<(Id, Member, u64)>,
    /// What keeps it from finding the others.
    refuses: bool,
}

impl End {
    fn new(hub: &Arc<Hub>) -> Self {
        Self { hub: hub.clone(), at: None, refuses: false }
    }

    fn wait(
        &self,
        over: &dyn Fn() -> bool,
        mut done: impl FnMut(&mut State) -> bool,
    ) -> Result<(), String> {
        let mut state = self.hub.state.lock().unwrap();
        loop {
            if done(&mut state) {
                self.hub.changed.notify_all();
                return Ok(());
            }
            if over() {
                return Err("the double gave up".into());
            }
            state = self.hub.changed.wait_timeout(state, Duration::from_millis(5)).unwrap().0;
        }
    }
}

impl Carrier for End {
    fn draw(&mut self) -> Result<Id, String> {
        let mut state = self.hub.state.lock().unwrap();
        state.drawn += 1;
        // Bits of every kind.
        Ok(std::array::from_fn(|i| state.drawn.wrapping_add(i as u8 * 2)))
    }

    fn connect(&mut self, id: &Id, member: Member, over: &dyn Fn() -> bool) -> Result<(), String> {
        if self.refuses {
            return Err("Duplicate GPU detected".into());
        }
        self.hub.state.lock().unwrap().here.entry(*id).or_default().push(member.index);
        self.wait(over, |state| state.here[id].len() == member.count)?;
        self.at = Some((*id, member, 0));
        Ok(())
    }

    fn exchange(
        &mut self,
        own: &[f32],
        to: &[usize],
        takes: &mut [(usize, &mut [f32])],
        over: &dyn Fn() -> bool,
    ) -> Result<(), String> {
        let (id, member, number) = self.at.as_mut().ok_or("not connected")?;
        *number += 1;
        let (id, me, number) = (*id, member.index, *number);
        for &to in to {
            let mut state = self.hub.state.lock().unwrap();
            state.values.insert((id, number, me, to), own.to_vec());
            self.hub.changed.notify_all();
        }
        for (from, place) in takes {
            self.wait(over, |state| {
                let came = state.values.remove(&(id, number, *from, me));
                came.iter().for_each(|values| place.copy_from_slice(values));
                came.is_some()
            })?;
        }
        Ok(())
    }

    fn abort(&mut self) {
        if self.at.take().is_some() {
            self.hub.state.lock().unwrap().aborts += 1;
        }
    }
}

type Made = Result<Box<dyn Carrier>, String>;

/// Every member's way through `run`, over the carrier that `make` gives it.
fn each<T: Send + 'static>(
    groups: &[Group],
    make: impl Fn(usize) -> Made,
    run: impl Fn(usize, &mut Direct) -> T + Send + Clone + 'static,
) -> Vec<T> {
    let start = |group: &Group| {
        let (group, run) = (group.clone(), run.clone());
        let made = make(group.member().index);
        thread::spawn(move || {
            let index = group.member().index;
            run(index, &mut Direct::new(group.seat(), made))
        })
    };
    let threads: Vec<_> = groups.iter().map(start).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

const SIZES: [usize; 3] = [4, 0, 700];

/// Two gathers and what the first member collects; whether all is as it must be.
fn meets(index: usize, exchange: &mut Direct) -> Result<bool, ExchangeError> {
    let values = |member: usize| (0..SIZES[member]).map(move |i| (i * 3 + member) as f32);
    let own: Vec<f32> = values(index).collect();
    let expected: Vec<f32> = (0..3).flat_map(values).collect();
    let mut all = Vec::new();
    let mut right = true;
    for _ in 0..2 {
        exchange.gather(&own, &SIZES, &mut all)?;
        right &= all == expected;
    }
    exchange.collect(&own, &SIZES, &mut all)?;
    Ok(right && all == if index == 0 { expected } else { Vec::new() })
}

fn direct(groups: &[Group]) -> Vec<u64> {
    groups.iter().map(|group| group.traffic().direct).collect()
}

#[test]
fn values_go_by_a_library_that_all_members_have() {
    let (groups, hub) = (joined(3), Arc::new(Hub::default()));
    let ends = each(&groups, |_| Ok(Box::new(End::new(&hub))), meets);
    assert_eq!(ends, [Ok(true), Ok(true), Ok(true)]);
    assert_eq!(direct(&groups), [3; 3]);
    // The next epoch has an id of its own.
    end(&groups);
    let groups = joined(3);
    let ends = each(&groups, |_| Ok(Box::new(End::new(&hub))), meets);
    assert_eq!(ends, [Ok(true), Ok(true), Ok(true)]);
    assert_eq!(hub.state.lock().unwrap().here.len(), 2);
    end(&groups);
}

#[test]
fn where_one_member_lacks_it_or_is_refused_links_carry_all() {
    let hub = Arc::new(Hub::default());
    for lacking in 0..3 {
        let groups = joined(3);
        let lacks = |index: usize| -> Made {
            if index == lacking { Err("no NCCL here".into()) } else { Ok(Box::new(End::new(&hub))) }
        };
        assert_eq!(each(&groups, lacks, meets), [Ok(true), Ok(true), Ok(true)]);
        assert_eq!(direct(&groups), [0; 3], "member {lacking} lacks it");
        end(&groups);
    }
    let groups = joined(3);
    let refused = |_| -> Made { Ok(Box::new(End { refuses: true, ..End::new(&hub) })) };
    assert_eq!(each(&groups, refused, meets), [Ok(true), Ok(true), Ok(true)]);
    assert_eq!(direct(&groups), [0; 3]);
    end(&groups);
}

#[test]
fn a_member_that_dies_has_the_others_give_the_library_up() {
    let (groups, hub) = (joined(3), Arc::new(Hub::default()));
    let dying = groups[2].clone();
    let ends = each(
        &groups,
        |_| Ok(Box::new(End::new(&hub))),
        move |index, exchange| {
            meets(index, exchange).unwrap();
            if index == 2 {
                thread::sleep(Duration::from_millis(100));
                dying.shutdown();
                return (2, Instant::now());
            }
            let own = vec![0.0; SIZES[index]];
            let error = exchange.gather(&own, &SIZES, &mut Vec::new()).unwrap_err();
            (error.member, Instant::now())
        },
    );
    let died = ends[2].1;
    for (member, ended) in &ends[..2] {
        assert_eq!(*member, 2);
        assert!(ended.saturating_duration_since(died) < Duration::from_secs(1));
    }
    assert_eq!(hub.state.lock().unwrap().aborts, 3);
    end(&groups);
}

#[test]
fn what_the_library_says_ends_the_epoch_by_its_member() {
    let (groups, hub) = (joined(2), Arc::new(Hub::default()));
    let breaks = |index: usize| -> Made {
        let end = End::new(&hub);
        Ok(if index == 1 { Box::new(Broken(end)) } else { Box::new(end) })
    };
    let ends = each(&groups, breaks, |_, exchange| {
        exchange.gather(&[1.0], &[1, 1], &mut Vec::new()).map_err(|error| error.to_string())
    });
    let expected = "member 1: unhandled system error";
    assert_eq!(ends, [Err(expected.into()), Err(expected.into())]);
    end(&groups);
}

/// An end that finds the others and can do nothing else.
struct Broken(End);

impl Carrier for Broken {
    fn draw(&mut self) -> Result<Id, String> {
        self.0.draw()
    }

    fn connect(&mut self, id: &Id, member: Member, over: &dyn Fn() -> bool) -> Result<(), String> {
        self.0.connect(id, member, over)
    }

    fn exchange(
        &mut self,
        _: &[f32],
        _: &[usize],
        _: &mut [(usize, &mut [f32])],
        _: &dyn Fn() -> bool,
    ) -> Result<(), String> {
        Err("unhandled system error".into())
    }

    fn abort(&mut self) {
        self.0.abort();
    }
}
