//! Configuration of Hadoop and of the systems built on it: pairs of key and value, written as the
//! files that each component reads.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

/// Where the daemons and programs say what goes wrong.
const LOGGING: &str = "\
log4j.rootLogger=WARN, A
log4j.logger.org.apache.hadoop.mapreduce.Job=INFO
log4j.logger.org.apache.hadoop.fs.TestDFSIO=INFO
log4j.logger.org.apache.hadoop.tools=INFO
log4j.logger.org.apache.flink.runtime=INFO
log4j.logger.org.apache.hadoop.util.NativeCodeLoader=ERROR
log4j.appender.A=org.apache.log4j.ConsoleAppender
log4j.appender.A.target=System.err
log4j.appender.A.layout=org.apache.log4j.PatternLayout
log4j.appender.A.layout.ConversionPattern=%d{ISO8601} %-5p %c{1} - %m%n
";

/// Pairs of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Site(BTreeMap<String, String>);

impl Site {
    /// Sets a value.
    pub fn set(&mut self, name: &str, value: impl std::fmt::Display) -> &mut Self {
        self.0.insert(name.to_owned(), value.to_string());
        self
    }

    /// The value of a name, where it has one.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// All pairs.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Writes `core-site.xml`, `hdfs-site.xml`, `mapred-site.xml`, `yarn-site.xml` and the logging
    /// configuration into a directory that exists.
    pub fn write(&self, directory: &Path) -> Result<()> {
        for file in ["core", "hdfs", "mapred", "yarn"] {
            let mut text = String::from("<configuration>\n");
            for (name, value) in self.pairs().filter(|(name, _)| file_of(name) == file) {
                let value = escape(value);
                text.push_str(&format!(
                    "  <property><name>{name}</name><value>{value}</value></property>\n"
                ));
            }
            text.push_str("</configuration>\n");
            write_changed(&directory.join(format!("{file}-site.xml")), &text)?;
        }
        write_changed(&directory.join("log4j.properties"), LOGGING)
    }
}

/// Leaves a file alone that has the text: a program that starts may be reading it.
fn write_changed(path: &Path, text: &str) -> Result<()> {
    match std::fs::read_to_string(path) {
        Ok(there) if there == text => Ok(()),
        _ => Ok(std::fs::write(path, text)?),
    }
}

/// Later files win, so each name has to be in the file of its own part.
fn file_of(name: &str) -> &'static str {
    let starts = [
        ("dfs.", "hdfs"),
        ("mapreduce.", "mapred"),
        ("yarn.app.mapreduce.", "mapred"),
        ("yarn.", "yarn"),
    ];
    starts.iter().find(|(start, _)| name.starts_with(start)).map_or("core", |(_, file)| file)
}

fn escape(value: &str) -> String {
    value.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::Site;

    #[test]
    fn each_name_is_in_the_file_of_its_part() {
        let directory = tempfile::tempdir().unwrap();
        let mut site = Site::default();
        site.set("fs.defaultFS", "tide:///").set("dfs.replication", 1).set("yarn.x", "a<b&c");
        site.set("yarn.app.mapreduce.am.resource.mb", 512);
        site.write(directory.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
        assert!(read("core-site.xml").contains("tide:///"));
        assert!(read("hdfs-site.xml").contains("dfs.replication"));
        assert!(read("yarn-site.xml").contains("a&lt;b&amp;c"));
        assert!(read("mapred-site.xml").contains("am.resource.mb"));
        assert!(!read("yarn-site.xml").contains("am.resource.mb"));
    }
}
