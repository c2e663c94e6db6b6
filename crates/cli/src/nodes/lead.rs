//! Rank 0 of a head: leads one plan's ring after another, with the same requests.

use std::net::TcpListener;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, anyhow};
use arith::base::Rank;
use ring::head::{Driver, RingState};
use ring::join::{Alone, Join};
use ring::key::Key;
use ring::tcp::Transport;
use stage::Engine;
use wire::hello::Encryption;

use crate::device::Seat;
use crate::model::Model;
use crate::rank::{Joined, Place};

/// What rank 0 needs of a plan.
#[derive(Clone)]
pub struct Seated {
    /// The plan's number.
    pub plan: u64,
    /// Who holds what.
    pub layout: String,
    /// Where rank 0 listens; none in a ring of one.
    pub listener: Option<Arc<TcpListener>>,
    /// Where rank 1 listens.
    pub next: Vec<String>,
    /// The ring's key.
    pub key: Key,
    /// The plan, for people.
    pub table: String,
}

/// What rank 0 is to do.
pub enum Order {
    /// Say what is waited for.
    Say(String),
    /// Lead this ring.
    Lead(Seated),
    /// Lead none; why.
    Wait(String),
    /// End; with an error where there is one.
    End(Option<String>),
}

/// The ring that rank 0 leads now, and its links, for those who end them.
#[derive(Clone, Default)]
pub struct Way(Arc<Mutex<Led>>);

#[derive(Default)]
struct Led {
    /// The ring's plan.
    plan: u64,
    transport: Option<Arc<Transport>>,
    /// Rings of plans before this one are over.
    first: u64,
}

impl Way {
    /// Ends the links of plans before `first`, those to come too: who leads may be late.
    pub fn cut(&self, first: u64) {
        let mut led = self.lock();
        led.first = led.first.max(first);
        led.end_if_over();
    }

    /// Ends the links that there are, and those to come.
    pub fn end(&self) {
        self.cut(u64::MAX);
    }

    /// The plan whose ring is led.
    pub fn plan(&self) -> u64 {
        self.lock().plan
    }

    fn set(&self, plan: u64, transport: Option<Arc<Transport>>) {
        let mut led = self.lock();
        (led.plan, led.transport) = (plan, transport);
        led.end_if_over();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Led> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Led {
    fn end_if_over(&self) {
        if let Some(transport) = self.transport.as_ref().filter(|_| self.plan < self.first) {
            transport.shutdown();
        }
    }
}

/// Rank 0's thread.
pub struct Lead {
    /// The model; its layout is each plan's.
    pub model: Arc<Model>,
    /// Compute threads.
    pub threads: usize,
    /// Whether links are enciphered.
    pub encryption: Encryption,
    /// What to do.
    pub orders: Receiver<Order>,
    /// The links, for whoever ends them.
    pub way: Way,
    /// Whether rank 0 has its layers.
    pub loaded: Arc<AtomicBool>,
}

/// Layers that stay loaded while their range does.
type Held = Option<(Range<u32>, Box<dyn Engine>)>;

impl Lead {
    /// Leads until the end.
    ///
    /// # Errors
    /// What keeps rank 0 from loading or listening, and the reason of an end.
    pub fn run(self, mut driver: Driver) -> Result<()> {
        let (mut current, mut held): (Option<Seated>, Held) = (None, None);
        let seat = self.model.seat(Rank(0), 0, self.threads)?;
        loop {
            driver.left();
            let mut orders: Vec<Order> = self.orders.try_iter().collect();
            if orders.is_empty() && current.is_none() {
                let Ok(order) = self.orders.recv() else { return Ok(()) };
                orders.push(order);
            }
            for order in orders {
                match order {
                    Order::Say(text) => driver.set_state(RingState::Booting(text)),
                    Order::Lead(seated) => current = Some(seated),
                    Order::Wait(why) => {
                        current = None;
                        driver.set_state(RingState::Waiting(why));
                    }
                    Order::End(why) => return why.map_or(Ok(()), |why| Err(anyhow!(why))),
                }
            }
            let Some(seated) = &current else { continue };
            match self.lead(seated, &seat, driver, &mut held)? {
                Some(left) => driver = left,
                None => return Ok(()),
            }
        }
    }

    /// Leads one ring until it is left or drained.
    fn lead(
        &self,
        seated: &Seated,
        seat: &Seat,
        driver: Driver,
        held: &mut Held,
    ) -> Result<Option<Driver>> {
        let mut settings = self.model.settings.clone();
        settings.layout = Some(seated.layout.clone());
        let model = Model::open(self.model.checkpoint.path(), settings)?;
        let range = model.range(Rank(0))?;
        let transport = match &seated.listener {
            None => None,
            Some(listener) => {
                let place = Place {
                    rank: Rank(0),
                    member: 0,
                    group: Vec::new(),
                    listen: vec![listener.local_addr()?],
                    next: seated.next.clone(),
                    key: Some(seated.key.clone()),
                    encryption: self.encryption,
                };
                let listeners = vec![listener.try_clone()?];
                Some(Arc::new(Transport::start_on(place.config(&model)?, listeners)?))
            }
        };
        driver.set_state(RingState::Booting(format!("plan {}", seated.plan)));
        self.way.set(seated.plan, transport.clone());
        let mut engine = match held.take() {
            Some((of, engine)) if of == range => engine,
            others => {
                drop(others);
                self.loaded.store(false, Ordering::Release);
                tracing::info!(
                    "rank 0: loading layers {}..{} and the ends of {}",
                    range.start,
                    range.end,
                    model.name()
                );
                model.engine(Rank(0), seat, None)?
            }
        };
        self.loaded.store(true, Ordering::Release);
        let left = match transport.clone() {
            None => serve(&model, seat, Alone, driver, &mut *engine),
            Some(transport) => serve(&model, seat, Joined(transport), driver, &mut *engine),
        }?;
        self.way.set(seated.plan, None);
        *held = Some((range, engine));
        Ok(left)
    }
}

fn serve<J: Join>(
    model: &Model,
    seat: &Seat,
    join: J,
    driver: Driver,
    engine: &mut dyn Engine,
) -> Result<Option<Driver>> {
    Ok(model.leader(seat, join, driver)?.run(engine))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::time::Duration;

    use arith::base::Epoch;
    use ring::link::LinkError;

    use super::*;
    use crate::probe::links::door;

    fn links() -> Arc<Transport> {
        let listen = vec!["127.0.0.1:0".parse().unwrap()];
        Arc::new(door(listen, None, Encryption::On).unwrap())
    }

    fn is_over(links: &Transport) -> bool {
        let joined = links.join(Some(Epoch(1)), Duration::from_millis(50));
        matches!(joined, Err(LinkError::Closed))
    }

    #[test]
    fn links_of_a_newer_plan_outlive_a_late_word_of_the_one_before() {
        let (way, links, late) = (Way::default(), [(); 2].map(|()| links()), links());
        way.set(2, Some(links[0].clone()));
        way.cut(2);
        assert!(!is_over(&links[0]) && way.plan() == 2);
        way.cut(3);
        assert!(is_over(&links[0]));
        way.set(2, Some(late.clone()));
        assert!(is_over(&late), "its plan was over before it had links");
        way.set(3, Some(links[1].clone()));
        assert!(!is_over(&links[1]));
        way.end();
        assert!(is_over(&links[1]));
    }
}
