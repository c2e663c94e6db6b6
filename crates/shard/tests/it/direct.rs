//! Ways between devices: how members find each other, when they do not, and what becomes of a loss.

use std::collections::HashMap;
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use shard::{Carrier, Direct, Group, Offer, Stopper, Without};
use stage::{Exchange, ExchangeError, Member};

use crate::double::{TIMES, addresses, config};
use crate::exchange::{end, joined};
use crate::relay::Relay;

/// What a double's ends have in common, as cards have the machine.
#[derive(Default)]
struct Hub {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    drawn: u8,
    /// By the first member's offer, who has come.
    here: HashMap<Offer, Vec<usize>>,
    left: usize,
    /// Members whose devices wait for nobody any more.
    stopped: Vec<usize>,
    /// Members whose devices have what they wait for.
    given: Vec<usize>,
}

/// An end of the double.
struct End {
    hub: Arc<Hub>,
    index: usize,
    is_there: bool,
    /// What keeps it from finding the others.
    refuses: bool,
    trouble: Option<String>,
}

impl End {
    fn new(hub: &Arc<Hub>, index: usize) -> Self {
        Self { hub: hub.clone(), index, is_there: false, refuses: false, trouble: None }
    }
}

impl Carrier for End {
    fn offer(&mut self, members: usize) -> Result<Offer, String> {
        assert!(self.index < members);
        let mut state = self.hub.state.lock().unwrap();
        state.drawn += 1;
        // Bits of every kind.
        Ok(std::array::from_fn(|i| state.drawn.wrapping_add(i as u8 * 2)))
    }

    fn connect(
        &mut self,
        offers: &[Offer],
        member: Member,
        over: &dyn Fn() -> bool,
    ) -> Result<(), String> {
        assert_eq!((offers.len(), self.index), (member.count, member.index));
        if self.refuses {
            return Err("members 0 and 1 are on one card".into());
        }
        let mut state = self.hub.state.lock().unwrap();
        state.here.entry(offers[0]).or_default().push(member.index);
        self.hub.changed.notify_all();
        while state.here[&offers[0]].len() < member.count {
            if over() {
                return Err("the double gave up".into());
            }
            state = self.hub.changed.wait_timeout(state, Duration::from_millis(5)).unwrap().0;
        }
        self.is_there = true;
        Ok(())
    }

    fn stopper(&self) -> Stopper {
        let (hub, index) = (self.hub.clone(), self.index);
        Box::new(move || {
            hub.state.lock().unwrap().stopped.push(index);
            hub.changed.notify_all();
        })
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.clone()
    }

    fn leave(&mut self) {
        if std::mem::take(&mut self.is_there) {
            self.hub.state.lock().unwrap().left += 1;
        }
    }
}

impl Hub {
    /// As a download waits for a device: until it has everything or is stopped.
    fn download(&self, index: usize) {
        let mut state = self.state.lock().unwrap();
        while !state.given.contains(&index) && !state.stopped.contains(&index) {
            state = self.changed.wait(state).unwrap();
        }
    }

    fn give_all(&self, members: usize) {
        self.state.lock().unwrap().given = (0..members).collect();
        self.changed.notify_all();
    }
}

type Made = Result<Box<dyn Carrier>, Without>;

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

/// Asks, has devices pass something on, and gathers and collects over links; whether values are
/// right, and whether devices have met.
fn meets(index: usize, exchange: &mut Direct) -> Result<(bool, bool), ExchangeError> {
    let values = |member: usize| (0..SIZES[member]).map(move |i| (i * 3 + member) as f32);
    let own: Vec<f32> = values(index).collect();
    let expected: Vec<f32> = (0..3).flat_map(values).collect();
    let mut all = Vec::new();
    let direct = exchange.is_direct()?;
    if direct {
        exchange.passed(2 * own.len(), expected.len() - own.len())?;
        exchange.settled()?;
    }
    exchange.gather(&own, &SIZES, &mut all)?;
    let mut right = all == expected && exchange.is_direct()? == direct;
    exchange.collect(&own, &SIZES, &mut all)?;
    right &= all == if index == 0 { expected } else { Vec::new() };
    Ok((right, direct))
}

fn direct(groups: &[Group]) -> Vec<u64> {
    groups.iter().map(|group| group.traffic().direct).collect()
}

#[test]
fn devices_that_all_members_have_are_asked_anew_in_each_epoch() {
    let hub = Arc::new(Hub::default());
    for epoch in 1..=2 {
        let groups = joined(3);
        let ends = each(&groups, |index| Ok(Box::new(End::new(&hub, index))), meets);
        assert_eq!(ends, [Ok((true, true)), Ok((true, true)), Ok((true, true))]);
        assert_eq!(direct(&groups), [1; 3]);
        let state = hub.state.lock().unwrap();
        assert_eq!((state.here.len(), state.left), (epoch, 3 * epoch));
        drop(state);
        end(&groups);
    }
}

#[test]
fn where_one_member_lacks_it_or_is_refused_links_carry_all() {
    let hub = Arc::new(Hub::default());
    for lacking in 0..3 {
        let groups = joined(3);
        let lacks = |index: usize| -> Made {
            let reason = (index > 0).then(|| "no NCCL here".to_owned());
            if index == lacking { Err(reason) } else { Ok(Box::new(End::new(&hub, index))) }
        };
        let ends = each(&groups, lacks, meets);
        assert_eq!(ends, [Ok((true, false)), Ok((true, false)), Ok((true, false))]);
        assert_eq!(direct(&groups), [0; 3], "member {lacking} lacks it");
        end(&groups);
    }
    let groups = joined(3);
    let refused = |index| -> Made { Ok(Box::new(End { refuses: true, ..End::new(&hub, index) })) };
    let ends = each(&groups, refused, meets);
    assert_eq!(ends, [Ok((true, false)), Ok((true, false)), Ok((true, false))]);
    assert_eq!(direct(&groups), [0; 3]);
    end(&groups);
}

#[test]
fn a_member_that_dies_has_the_others_devices_wait_for_nobody() {
    let (groups, hub) = (joined(3), Arc::new(Hub::default()));
    let (dying, waits, met) = (groups[2].clone(), hub.clone(), Arc::new(Barrier::new(3)));
    let ends = each(
        &groups,
        |index| Ok(Box::new(End::new(&hub, index))),
        move |index, exchange| {
            assert_eq!(meets(index, exchange), Ok((true, true)));
            met.wait();
            if index == 2 {
                thread::sleep(Duration::from_millis(100));
                dying.shutdown();
                return (2, Instant::now());
            }
            exchange.passed(1, 1).unwrap();
            waits.download(index);
            let error = exchange.settled().unwrap_err();
            assert_eq!(exchange.passed(1, 1), Err(error.clone()));
            (error.member, Instant::now())
        },
    );
    let died = ends[2].1;
    for (member, ended) in &ends[..2] {
        assert_eq!(*member, 2);
        assert!(ended.saturating_duration_since(died) < Duration::from_secs(1));
    }
    assert_eq!(hub.state.lock().unwrap().left, 3);
    end(&groups);
}

/// What a device that has been given all is found to have waited for.
fn waits(hub: &Hub, index: usize, exchange: &mut Direct) -> Result<(), ExchangeError> {
    assert_eq!(exchange.is_direct(), Ok(true));
    exchange.passed(1, 1)?;
    hub.download(index);
    exchange.settled()
}

#[test]
fn a_member_that_rests_ends_the_others_waits_soon_and_one_that_computes_does_not() {
    let (groups, hub) = (joined(3), Arc::new(Hub::default()));
    let hears = hub.clone();
    let ends = each(
        &groups,
        |index| Ok(Box::new(End::new(&hub, index))),
        move |index, exchange| {
            // As long as two silences, which only a device at work may take.
            let device = hears.clone();
            if index == 2 {
                thread::spawn(move || {
                    thread::sleep(2 * TIMES.silent);
                    device.give_all(3);
                });
            }
            let computed = waits(&hears, index, exchange);
            hears.state.lock().unwrap().given.retain(|given| *given != index);
            let start = Instant::now();
            let rested = match index {
                // It beats, and was asked for nothing more.
                2 => loop {
                    thread::sleep(Duration::from_millis(10));
                    if let Err(lost) = exchange.is_direct() {
                        break Err(lost);
                    }
                },
                _ => waits(&hears, index, exchange),
            };
            (computed, rested.unwrap_err(), start.elapsed())
        },
    );
    for (computed, rested, took) in ends {
        assert_eq!(computed, Ok(()));
        assert_eq!(rested.member, 2);
        assert!(rested.reason.starts_with("AtRest: it beats, and is at no"), "{rested}");
        assert!((TIMES.silent..TIMES.silent * 2).contains(&took), "{took:?}");
    }
    end(&groups);
}

#[test]
fn a_member_that_falls_silent_ends_the_others_waits() {
    let mut all = addresses(2);
    let relay = Relay::to(all[0].clone());
    let first = Group::start(config(0, &all)).unwrap();
    all[0] = relay.address.to_string();
    let groups = vec![first, Group::start(config(1, &all)).unwrap()];
    let joins = groups.clone().into_iter().map(|group| thread::spawn(move || group.join()));
    joins.collect::<Vec<_>>().into_iter().for_each(|join| join.join().unwrap().unwrap());
    let hub = Arc::new(Hub::default());
    let (device, relay) = (hub.clone(), Arc::new(relay));
    let (stalls, all) = (relay.clone(), Arc::new(Barrier::new(2)));
    let ends = each(
        &groups,
        |index| Ok(Box::new(End::new(&hub, index))),
        move |index, exchange| {
            assert_eq!(exchange.is_direct(), Ok(true));
            all.wait();
            stalls.stall(true);
            let start = Instant::now();
            (waits(&device, index, exchange).unwrap_err().reason, start.elapsed())
        },
    );
    for (reason, took) in ends {
        assert!(reason.contains("Silent: no byte for 1500 ms"), "{reason}");
        assert!(took < TIMES.silent + Duration::from_secs(1), "{took:?}");
    }
    relay.stall(false);
    end(&groups);
}

#[test]
fn what_the_library_says_ends_the_epoch_by_its_member() {
    let (groups, hub) = (joined(2), Arc::new(Hub::default()));
    let breaks = |index: usize| -> Made {
        let trouble = (index == 1).then(|| "unhandled system error".to_owned());
        Ok(Box::new(End { trouble, ..End::new(&hub, index) }))
    };
    let (waits, met) = (hub.clone(), Arc::new(Barrier::new(2)));
    let ends = each(&groups, breaks, move |index, exchange| {
        assert_eq!(exchange.is_direct(), Ok(true));
        // What ends the epoch before both have heard that they met ends that, too.
        met.wait();
        exchange.passed(1, 1)?;
        if index == 0 {
            waits.download(0);
        }
        exchange.settled()
    });
    let expected = "member 1: unhandled system error";
    let said = |end: &Result<(), ExchangeError>| end.as_ref().unwrap_err().to_string();
    assert_eq!(ends.iter().map(said).collect::<Vec<_>>(), [expected; 2]);
    hub.give_all(2);
    end(&groups);
}
