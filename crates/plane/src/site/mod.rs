//! `tidepool plane site`: the plane's own state, as the job says it in its topic of summaries.

mod alarms;
mod draw;
mod gathered;
mod metrics;
mod summary;
mod topic;
mod view;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidepool_cli::plane::SiteArguments;
use tidepool_proto::{Error, Result};
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::output;

use self::gathered::Gathered;
use self::topic::{Brokers, Topic};
use self::view::{SILENT_AFTER, Site};

/// Time between two pictures.
const PERIOD: Duration = Duration::from_secs(1);

/// Runs `plane site`. It is not so where the plane does not do its work.
pub fn site(arguments: &SiteArguments) -> Result<Outcome> {
    let brokers = Brokers::default();
    let client = topic::client(arguments, &brokers)?;
    let mut topic = Topic::open(&client, &brokers, &arguments.summaries_topic)?;
    let mut gathered = Gathered::default();
    topic.read_all(&mut gathered)?;
    let is_young = |gathered: &Gathered| age(gathered).is_some_and(|age| age < SILENT_AFTER);
    // A job that sends is heard by then, whatever its clock says.
    topic.read_on(&mut gathered, SILENT_AFTER, is_young)?;
    loop {
        let (name, top) = (&arguments.summaries_topic, usize::from(arguments.top));
        let site = Site::new(&gathered, name, top, age(&gathered), brokers.trouble());
        show(&site, arguments)?;
        if !arguments.watch {
            return Ok(if site.works() { Outcome::Done } else { Outcome::NotSo });
        }
        if !is_young(&gathered) {
            topic.look_again()?;
        }
        topic.read_on(&mut gathered, PERIOD, |_| false)?;
    }
}

fn age(gathered: &Gathered) -> Option<Duration> {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    gathered.age(Instant::now(), u64::try_from(now_ms).unwrap_or(u64::MAX))
}

fn show(site: &Site, arguments: &SiteArguments) -> Result<()> {
    match (arguments.json, arguments.watch) {
        (true, false) => output::json(site)?,
        (true, true) => {
            let line = serde_json::to_string(site).map_err(|error| {
                Error::pfs("writing JSON", std::io::Error::other(error.to_string()))
            })?;
            output::json_line(&line);
        }
        (false, is_watched) => {
            if arguments.metrics {
                metrics::print(site);
                return Ok(());
            }
            if is_watched {
                output::clear();
            }
            draw::site(site);
        }
    }
    Ok(())
}
