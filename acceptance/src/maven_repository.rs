//! The jar of `tide://` as an artifact of Maven, in a directory.

use std::path::Path;

use anyhow::{Context, Result};

/// Puts the jar into a directory laid out as a repository of Maven, from which `--packages` of
/// Spark and builds take it. It depends on nothing: what it runs in brings the rest.
pub fn publish(jar: &Path, repository: &Path) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("tidepool-hadoop-{version}");
    let place = repository.join("io/tidepool/tidepool-hadoop").join(version);
    std::fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
    std::fs::copy(jar, place.join(format!("{name}.jar")))
        .with_context(|| jar.display().to_string())?;
    let project = format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\">\n  \
           <modelVersion>4.0.0</modelVersion>\n  <groupId>io.tidepool</groupId>\n  \
           <artifactId>tidepool-hadoop</artifactId>\n  <version>{version}</version>\n  \
           <licenses>\n    <license><name>Apache-2.0</name></license>\n  </licenses>\n\
         </project>\n"
    );
    std::fs::write(place.join(format!("{name}.pom")), project)?;
    Ok(())
}
