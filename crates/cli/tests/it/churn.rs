//! What a user of three nodes lives through: one dies in the middle of a reply and is back 20 s
//! later, one is slow, one joins, the head is started anew. Prints when what happened, and what a
//! client saw that asked all the time.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::http::Stream;
use crate::nodes::{Field, alone, limit, long, node, plan, planned};
use crate::process::{Baton, baton, members, s, wait_for};
use crate::ring::Server;

/// Tokens of each reply of the client.
const TOKENS: u32 = 600;

/// Lines with their times, printed as they come.
#[derive(Clone)]
struct Timeline(Instant);

impl Timeline {
    fn say(&self, what: impl Display) {
        eprintln!("{:7.2} s  {what}", self.0.elapsed().as_secs_f64());
    }
}

/// How a reply ended, as its client saw it.
#[derive(Clone, Debug)]
struct Seen {
    began: Instant,
    ended: Instant,
    /// The longest wait for a token.
    pause: Duration,
    /// All bytes as one machine gives them.
    equal: bool,
    /// What came instead of the rest, where something did.
    broke: Option<String>,
}

/// Asks again and again.
struct Client {
    seen: Arc<Mutex<Vec<Seen>>>,
    asks: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    at: Arc<Mutex<SocketAddr>>,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    fn start(addr: SocketAddr, body: Value, expected: Vec<u64>, timeline: Timeline) -> Self {
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (asks, over) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let at = Arc::new(Mutex::new(addr));
        let (kept, ask, end, to) = (seen.clone(), asks.clone(), over.clone(), at.clone());
        let run = move || {
            while !end.load(Ordering::Acquire) {
                if !ask.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(20));
                    continue;
                }
                let addr = *to.lock().unwrap();
                let one = ask_once(addr, &body, &expected);
                let number = kept.lock().unwrap().len() + 1;
                let took = one.ended - one.began;
                let what = match (&one.broke, one.equal) {
                    (None, true) => "equal bytes".to_owned(),
                    (None, false) => "OTHER BYTES".to_owned(),
                    (Some(why), _) => format!("broke: {why}"),
                };
                timeline.say(format!(
                    "    client: reply {number}: {what}, {:.2} s, longest pause {:.2} s",
                    took.as_secs_f64(),
                    one.pause.as_secs_f64()
                ));
                if one.broke.is_some() {
                    std::thread::sleep(Duration::from_millis(250));
                }
                kept.lock().unwrap().push(one);
            }
        };
        let thread = Some(std::thread::spawn(run));
        Self { seen, asks, over, at, thread }
    }

    fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// Waits until a reply that began from now on is whole.
    fn served(&self, limit: Duration) {
        let since = Instant::now();
        let whole = |seen: &Seen| seen.began >= since && seen.broke.is_none();
        let served = || self.seen.lock().unwrap().iter().any(whole).then_some(());
        assert!(wait_for(limit, served).is_some(), "no reply for {limit:?}");
    }

    fn end(mut self) -> Vec<Seen> {
        self.over.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap();
        self.seen.lock().unwrap().clone()
    }
}

fn ask_once(addr: SocketAddr, body: &Value, expected: &[u64]) -> Seen {
    let mut body = body.clone();
    body["stream"] = true.into();
    let began = Instant::now();
    let (mut last, mut pause) = (began, Duration::ZERO);
    let seen = |pause, equal, broke| Seen { began, ended: Instant::now(), pause, equal, broke };
    let mut stream = match Stream::try_open(addr, "/v1/completions", &body.to_string()) {
        Ok(Ok(stream)) => stream,
        Ok(Err((status, text))) => return seen(pause, false, Some(format!("{status}: {text}"))),
        Err(error) => return seen(pause, false, Some(error.to_string())),
    };
    while stream.step() {
        pause = pause.max(last.elapsed());
        last = Instant::now();
    }
    let all = stream.all();
    let broke = match (&all.error, all.done) {
        (Some(error), _) => Some(error.clone()),
        (None, false) => Some("cut".into()),
        (None, true) => None,
    };
    seen(pause, all.ids == expected, broke)
}

/// Stages that run for an agent.
fn ranks(agent: &Baton) -> usize {
    members(agent.id()).iter().filter(|line| line.contains(" stage ")).count()
}

/// What is there while all of it happens.
struct Life {
    field: Field,
    timeline: Timeline,
    /// b, c and d, while they run.
    agents: [Option<Baton>; 3],
    client: Client,
}

const NAMES: [&str; 3] = ["b", "c", "d"];

impl Life {
    fn agent(&self, at: usize) -> &Baton {
        self.agents[at].as_ref().unwrap()
    }

    /// The first node with a rank.
    fn holder(head: &Server) -> usize {
        NAMES.iter().position(|name| node(head, name)["rank"].is_u64()).unwrap()
    }

    fn is_up(head: &Server, at: usize) {
        let up = || (node(head, NAMES[at])["state"] == "up").then_some(());
        assert!(wait_for(s(30), up).is_some(), "{}", node(head, NAMES[at]));
    }

    /// One dies in the middle of a reply, and is back 20 s later.
    fn death(&mut self, head: &Server) {
        let at = Self::holder(head);
        let name = NAMES[at];
        let died = Instant::now();
        self.timeline.say(format!("node {name} loses power: agent and rank killed"));
        self.agent(at).signal_group(libc::SIGKILL);
        let gone = planned(head, |plan| !plan.contains(&format!("{name} ")) && !plan.is_empty());
        self.timeline.say(format!("planned anew: {gone}"));
        self.client.served(s(60));
        self.timeline.say("served again");
        std::thread::sleep(s(20).saturating_sub(died.elapsed()));
        self.agents[at] = Some(self.field.agent(at));
        self.timeline.say(format!("node {name} is back"));
        Self::is_up(head, at);
        std::thread::sleep(s(8));
        assert_eq!(plan(head), gone, "nothing changes while requests run");
        self.timeline.say(format!("it is up, and while requests run the plan stays: {gone}"));
    }

    /// One halts for a while.
    fn slowness(&self, head: &Server) {
        let at = Self::holder(head);
        let before = plan(head);
        self.timeline.say(format!("node {} is slow: agent and rank halt for 4 s", NAMES[at]));
        self.agent(at).signal_group(libc::SIGSTOP);
        std::thread::sleep(s(4));
        self.agent(at).signal_group(libc::SIGCONT);
        self.client.served(s(30));
        assert_eq!(plan(head), before, "a slow node keeps its rank");
        self.timeline.say(format!("node {} goes on; the plan stays", NAMES[at]));
    }

    /// One joins, and a user asks for a plan.
    fn joining(&mut self, head: &Server) {
        self.agents[2] = Some(self.field.agent(2));
        self.timeline.say("node d joins");
        Self::is_up(head, 2);
        let url = format!("http://{}", head.addr);
        let output = baton().args(["replan", "--url", &url]).output();
        assert!(output.unwrap().status.success());
        self.timeline.say("a user asks: baton replan");
        self.client.served(s(60));
        self.timeline.say(format!("plan: {}", plan(head)));
    }

    /// The head halts, another takes over, and the first goes on; the second, and how many replies
    /// there were before.
    fn succession(&self, head: &mut Server) -> (Server, usize) {
        self.timeline.say("the head halts; another one is started");
        let count = self.client.count();
        head.process.signal(libc::SIGSTOP);
        let second = self.field.serve(&["--replan-wait", "2"]);
        second.wait_ready(s(60));
        *self.client.at.lock().unwrap() = second.addr;
        self.timeline.say(format!("the second head is ready: {}", plan(&second)));
        head.process.signal(libc::SIGCONT);
        let status = head.process.exit(s(30));
        assert_eq!(status.code(), Some(1), "{}", head.process.log.text());
        let (_, said) = head.process.log.wait("another head has taken over", s(5));
        self.timeline.say(format!("the first head goes on, is refused and ends: {said}"));
        self.client.served(s(60));
        (second, count)
    }

    /// All is asked to end, and nothing is left.
    fn end(mut self, mut head: Server) -> Vec<Seen> {
        self.client.asks.store(false, Ordering::Release);
        let seen = self.client.end();
        self.timeline.say("all is asked to end");
        head.process.signal(libc::SIGTERM);
        head.process.ends_well(s(30));
        for (name, agent) in NAMES.iter().zip(self.agents.iter_mut().flatten()) {
            assert!(wait_for(s(10), || (ranks(agent) == 0).then_some(())).is_some(), "{name}");
            agent.signal(libc::SIGTERM);
            agent.ends_well(s(10));
        }
        seen
    }
}

#[test]
#[ignore = "a minute and a half: `cargo xtask churn`"]
fn a_user_of_three_nodes_lives_through_all_of_it() {
    let body = long(TOKENS);
    let expected = alone(&body);
    // No machine has room for the model alone.
    let field = Field::new("churn", &NAMES, Some(limit(0.75)));
    let timeline = Timeline(Instant::now());
    let agents = [Some(field.agent(0)), Some(field.agent(1)), None];
    timeline.say("agents b and c listen; d is listed and off");
    let mut head = field.serve(&["--replan-wait", "2"]);
    head.wait_ready(s(60));
    timeline.say(format!("ready: {}", plan(&head)));
    let client = Client::start(head.addr, body, expected, timeline.clone());
    client.served(s(30));
    let mut life = Life { field, timeline: timeline.clone(), agents, client };
    life.death(&head);
    life.slowness(&head);
    life.joining(&head);
    let (second, count) = life.succession(&mut head);
    let seen = life.end(second);
    let whole = seen.iter().filter(|seen| seen.broke.is_none() && seen.equal).count();
    let broke = seen.iter().filter(|seen| seen.broke.is_some()).count();
    let other = seen.iter().filter(|seen| seen.broke.is_none() && !seen.equal).count();
    let pause = seen[..count].iter().map(|seen| seen.pause).max().unwrap_or_default();
    timeline.say(format!(
        "churn: {} replies, {whole} whole with equal bytes, {other} with others, {broke} that the \
         first head's end cut; longest pause before that {:.1} s; nothing left running",
        seen.len(),
        pause.as_secs_f64()
    ));
    assert_eq!(other, 0);
    assert!(seen[..count].iter().all(|seen| seen.broke.is_none()), "{:?}", &seen[..count]);
}
