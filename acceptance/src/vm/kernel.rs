//! The kernel: a package of the distribution, unpacked below the target directory.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process;

/// A kernel and its modules.
#[derive(Debug)]
pub struct Kernel {
    /// The bootable image.
    pub image: PathBuf,
    /// Every module file below the directory of modules.
    modules: Vec<PathBuf>,
}

/// The kernel of the wanted series, if the distribution has one; downloads its package unless it is
/// there.
pub fn fetch(directory: &Path, series: &str) -> Result<Option<Kernel>> {
    let root = directory.join(format!("linux-{series}"));
    if !root.is_dir() {
        let Some(package) = newest_package(series)? else { return Ok(None) };
        println!("x: downloading {package}");
        let fresh = tempfile::tempdir_in(directory)?;
        let mut download = process::command("apt-get", &["-qq", "download", &package]);
        process::read(download.current_dir(fresh.path()))?;
        let archive = std::fs::read_dir(fresh.path())?.next().context("apt-get left no file")??;
        let mut unpack = process::command("dpkg-deb", &["-x"]);
        let tree = fresh.path().join("root");
        process::read(unpack.arg(archive.path()).arg(&tree))?;
        // Whole or not there.
        std::fs::rename(&tree, &root)?;
    }
    let image = files(&root.join("boot"))?.into_iter().find(|path| is_named(path, "vmlinuz"));
    let image = image.context("the package has no kernel image")?;
    let libraries = [root.join("lib/modules"), root.join("usr/lib/modules")];
    let libraries = libraries.iter().find(|path| path.is_dir()).context("no modules")?;
    Ok(Some(Kernel { image, modules: files(libraries)? }))
}

fn is_named(path: &Path, start: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start))
}

/// The newest kernel package of a series, signed and for common machines.
fn newest_package(series: &str) -> Result<Option<String>> {
    let mut ask = process::command("apt-cache", &["pkgnames", "linux-image-"]);
    // Other distributions have no apt.
    let Ok(names) = process::read(&mut ask) else { return Ok(None) };
    let mut packages: Vec<(Vec<u64>, &str)> = names
        .lines()
        .filter_map(|name| {
            let version = name.strip_prefix("linux-image-")?.strip_suffix("-amd64")?;
            let plain = version.bytes().all(|byte| byte.is_ascii_digit() || b".-".contains(&byte));
            let ours = version.strip_prefix(series)?.starts_with(['.', '-']);
            let numbers = version.split(['.', '-']).filter_map(|part| part.parse().ok()).collect();
            (plain && ours).then_some((numbers, name))
        })
        .collect();
    packages.sort();
    Ok(packages.pop().map(|(_, name)| name.to_owned()))
}

fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        // A link back to the sources of the kernel may lead anywhere.
        match path.symlink_metadata()?.file_type() {
            kind if kind.is_dir() => found.extend(files(&path)?),
            kind if kind.is_file() => found.push(path),
            _ => {}
        }
    }
    Ok(found)
}

impl Kernel {
    /// Files of the wanted modules and of those that they need, in the order of loading.
    pub fn modules(&self, names: &[&str]) -> Result<Vec<PathBuf>> {
        let mut order = Vec::new();
        for name in names {
            self.add_module(name, &mut order)?;
        }
        Ok(order)
    }

    fn add_module(&self, name: &str, order: &mut Vec<PathBuf>) -> Result<()> {
        let file = |path: &&PathBuf| {
            let stem = path.file_name().map(|file| file.to_string_lossy().replace('-', "_"));
            stem.is_some_and(|stem| stem == format!("{name}.ko"))
        };
        // What is no file is built into the kernel.
        let Some(path) = self.modules.iter().find(file) else { return Ok(()) };
        if order.contains(path) {
            return Ok(());
        }
        for needed in needs(&std::fs::read(path)?) {
            self.add_module(&needed, order)?;
        }
        order.push(path.clone());
        Ok(())
    }
}

/// The modules that a module says it needs.
fn needs(module: &[u8]) -> Vec<String> {
    const MARK: &[u8] = b"\0depends=";
    let Some(at) = module.windows(MARK.len()).position(|window| window == MARK) else {
        return Vec::new();
    };
    let list = module[at + MARK.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let list = String::from_utf8_lossy(list);
    list.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::needs;

    #[test]
    fn a_module_says_what_it_needs() {
        assert_eq!(needs(b"x\0depends=mbcache,jbd2-a\0y"), ["mbcache", "jbd2_a"]);
        assert!(needs(b"x\0depends=\0y").is_empty() && needs(b"x").is_empty());
    }
}
