//! What Spark's daemons and drivers are started with: the jars of a release made from artifacts, a
//! home that has them, and the environment that names both.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::artifacts::{self, Project};
use super::hadoop::Hadoop;
use super::java::{self, Java};
use crate::scratch::Scratch;

/// A home of Spark; it is removed with this.
#[derive(Debug)]
pub struct SparkHome {
    class_path: String,
    project: Project,
    environment: Vec<(String, String)>,
    /// Where the home goes with this.
    _scratch: Option<Scratch>,
}

impl SparkHome {
    /// Makes a home whose programs know the file systems of `hadoop`, and writes its configuration.
    pub fn new(hadoop: &Hadoop) -> Result<Self> {
        let scratch = Scratch::short()?;
        let home = SparkHome::at(scratch.path(), hadoop)?;
        Ok(SparkHome { _scratch: Some(scratch), ..home })
    }

    /// The same in a directory that stays.
    pub fn at(home: &Path, hadoop: &Hadoop) -> Result<Self> {
        let project = artifacts::project("spark")?;
        // Workers start executors with what lies in `jars`.
        let jars = home.join("jars");
        std::fs::create_dir_all(&jars)?;
        let jar = project.jar.display().to_string();
        let lists = [jar.as_str(), hadoop.jars(), &project.dependencies];
        let all = lists.into_iter().flat_map(|list| list.split(':')).filter(|jar| !jar.is_empty());
        for (index, jar) in all.enumerate() {
            let name = PathBuf::from(jar);
            let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let link = jars.join(format!("{index:03}-{name}"));
            if !link.exists() {
                std::os::unix::fs::symlink(jar, link)?;
            }
        }
        hadoop.site.write(&hadoop.configuration())?;
        let configuration = hadoop.configuration().display().to_string();
        // The logs of executors.
        let work = hadoop.logs.join("spark-work");
        let class_path = java::class_path(&[&configuration, &format!("{}/*", jars.display())]);
        let environment = vec![
            ("SPARK_HOME".into(), home.display().to_string()),
            ("HADOOP_CONF_DIR".into(), configuration),
            ("SPARK_WORKER_DIR".into(), work.display().to_string()),
            ("JAVA_HOME".into(), java::home()?.display().to_string()),
            ("SPARK_SCALA_VERSION".into(), "2.13".into()),
        ];
        Ok(SparkHome { class_path, project, environment, _scratch: None })
    }

    /// For a master or a worker.
    pub fn daemon(&self, heap: &str) -> Java {
        let mut java = Java::new(&self.class_path, heap).light();
        java.environment.clone_from(&self.environment);
        java
    }

    /// For a driver whose executors the master gives.
    pub fn driver(&self, heap: &str, master: &str, name: &str) -> Java {
        let opens: Vec<String> = java::opens().collect();
        Java::new(&self.class_path, heap)
            .property("spark.master", master)
            .property("spark.app.name", name)
            .property("spark.jars", self.project.jar.display())
            .property("spark.executor.extraJavaOptions", opens.join(" "))
            .property("spark.ui.enabled", false)
    }
}
