//! `tidepool plane agent`: puts the parts of an agent together. Four threads, those of samples, of
//! ceilings, of other stores and of jobs, beside those of Kafka's client.

use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::rand::{GetRandomFlags, getrandom};
use tidepool_cli::plane::AgentArguments;
use tidepool_control::actuator::ObservedStore;
use tidepool_proto::{Error, ErrorKind, Result};
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::interruption;

use crate::ceilings::Ceilings;
use crate::kafka::Kafka;
use crate::rhythm::Rhythm;
use crate::sample::Origin;
use crate::samples::Samples;
use crate::shared::{Shared, say, say_last};
use crate::status::StatusSocket;

/// Stack of the thread of ceilings.
const STACK_BYTES: usize = 512 << 10;
/// Threads that wait for what is never urgent, those of Kafka's client among them, which wake up
/// once a second to see what is late: so much later they may.
const OTHERS_SLACK_NS: u64 = 200_000_000;
/// Samples come in time.
const SAMPLES_SLACK_NS: u64 = 1_000_000;

/// Runs `plane agent` until it is asked to end.
pub fn agent(arguments: &AgentArguments) -> Result<Outcome> {
    let ending = interruption::watch()?;
    // Before any thread is started: each has what its starter has.
    set_timer_slack(OTHERS_SLACK_NS);
    let AgentArguments { interval_ms, summary_ms, batch, .. } = arguments;
    let rhythm = Rhythm::new(*interval_ms, *summary_ms, *batch)?;
    let socket = arguments.socket.path();
    let mut status = StatusSocket::bind(&socket)?;
    // A user that names a socket means the node there, whichever user runs it.
    let owner = std::fs::metadata(&socket).ok().map(|facts| facts.uid());
    let trusted = owner.filter(|_| arguments.socket.socket.is_some());
    let store = ObservedStore::new(&socket, trusted);
    let origin = origin(arguments, rhythm)?;
    let shared = Arc::new(Shared::new(origin, rhythm, arguments.kafka.clone(), store));
    let kafka = Kafka::new(arguments)?;
    let sends_samples = !arguments.no_samples;
    let producer = sends_samples.then(|| kafka.producer(&shared)).transpose()?;
    let client = kafka.consumer(&shared)?;
    let topic = arguments.samples_topic.as_str();
    let mut samples = Samples::new(Arc::clone(&shared), producer.as_ref(), topic)?;
    let topic = arguments.ceilings_topic.as_str();
    let looker_alone;
    let looker = match &producer {
        Some(producer) => producer,
        None => {
            looker_alone = kafka.looker(&shared)?;
            &looker_alone
        }
    };
    let ceilings =
        Ceilings { shared: Arc::clone(&shared), client: &client, looker, topic, sends_samples };
    set_timer_slack(SAMPLES_SLACK_NS);
    say(&format!("started for the node {} in {}", shared.origin.node, shared.origin.cluster));
    run(&mut samples, &ceilings, &mut status, &ending)?;
    say_last("ends");
    Ok(Outcome::Done)
}

fn run(
    samples: &mut Samples<'_>,
    ceilings: &Ceilings<'_>,
    status: &mut StatusSocket,
    ending: &AtomicBool,
) -> Result<()> {
    std::thread::scope(|scope| {
        let failed = |error| {
            // Those that were started before end too.
            ending.store(true, Ordering::Relaxed);
            no_thread(error)
        };
        let thread =
            |name: &str| std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
        thread("ceilings").spawn_scoped(scope, || ceilings.run(ending)).map_err(failed)?;
        let is_told = samples.tell_of_others();
        let watch = move || ceilings.shared.watch_others(ending, is_told);
        let stores = thread("stores").spawn_scoped(scope, watch).map_err(failed)?;
        let watch = || ceilings.shared.jobs.watch(ending);
        let jobs = thread("jobs").spawn_scoped(scope, watch).map_err(failed)?;
        samples.run(status, ending);
        ending.store(true, Ordering::Relaxed);
        stores.thread().unpark();
        jobs.thread().unpark();
        Ok(())
    })
}

/// Lets the kernel wake this thread up so much later, together with others. Where it does not, each
/// wakes up on its own, which costs a little more.
fn set_timer_slack(slack_ns: u64) {
    _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(slack_ns));
}

fn no_thread(error: std::io::Error) -> Error {
    Error::new(ErrorKind::LimitReached, "starting the agent", "no thread").caused_by(error)
}

fn origin(arguments: &AgentArguments, rhythm: Rhythm) -> Result<Origin> {
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut random = [0; 8];
    getrandom(&mut random, GetRandomFlags::empty())
        .map_err(|error| Error::pfs("asking for random bytes", error))?;
    Ok(Origin {
        cluster: arguments.cluster.clone(),
        node: arguments.name.clone().unwrap_or_else(host),
        rack: arguments.rack.clone(),
        start: format!("{:016x}", u64::from_le_bytes(random)),
        step_ms: rhythm.step_ms(),
    })
}
