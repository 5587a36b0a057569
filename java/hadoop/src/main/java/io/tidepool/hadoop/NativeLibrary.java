/*
 * Loads the native library, once a class loader, and checks that it belongs to these classes.
 * `-Dio.tidepool.library.path=FILE` names a library; otherwise the one in the jar is unpacked into
 * a directory that only this user can write, once for all programs: tasks of a job live for
 * seconds, and a digest of the library alone costs a starting JVM a fifth of one.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.io.InputStream;
import java.net.JarURLConnection;
import java.net.URL;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.PosixFileAttributes;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.Locale;
import java.util.UUID;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;

final class NativeLibrary {

    /** Property that names the library instead of the one in the jar. */
    static final String PATH_PROPERTY = "io.tidepool.library.path";

    private static final String NAME = "libtidepool_java.so";
    private static final String LOADING = "while loading the native library";

    private static IOException failure;
    private static boolean loaded;

    private NativeLibrary() {}

    /** Version of the native methods of the library that is loaded. */
    private static native int abi();

    /** Has the library ready for calls that fail, before the first. */
    private static native void prepare();

    /** Panics in the native library, for tests. */
    static native void panic(String message) throws IOException;

    /** Loads the library if that did not happen yet; fails the same way each time. */
    static synchronized void load() throws IOException {
        if (loaded) {
            return;
        }
        if (failure == null) {
            try {
                loadOnce();
                loaded = true;
                return;
            } catch (IOException error) {
                failure = error;
            } catch (UnsatisfiedLinkError error) {
                failure = refusal(error.getMessage());
            }
        }
        throw new IOException(failure.getMessage(), failure);
    }

    private static void loadOnce() throws IOException {
        String named = System.getProperty(PATH_PROPERTY);
        Path source = named == null ? unpackOrRefuse() : Path.of(named).toAbsolutePath();
        if (!Files.isRegularFile(source)) {
            throw refusal(source + " is no file");
        }
        try {
            System.load(source.toString());
        } catch (UnsatisfiedLinkError error) {
            // The JVM gives one file to one class loader; another name of it goes to another.
            if (!String.valueOf(error.getMessage()).contains("already loaded")) {
                throw error;
            }
            loadUnderAnotherName(source);
        }
        check(source);
        prepare();
    }

    private static void check(Path source) throws IOException {
        int found;
        try {
            found = abi();
        } catch (UnsatisfiedLinkError error) {
            throw refusal(source + " is not the native library of Tidepool");
        }
        if (found != TideOptions.ABI) {
            throw refusal("the jar speaks version " + TideOptions.ABI + " of the native calls, "
                    + source + " speaks " + found + "; use jar and library of the same release");
        }
    }

    private static IOException refusal(String why) {
        return new IOException(LOADING + ": " + why + " (set -D"
                + PATH_PROPERTY + "=FILE to a libtidepool_java.so of this release and machine, or "
                + "-Djava.io.tmpdir=DIRECTORY to a place where programs may run)");
    }

    private static void loadUnderAnotherName(Path source) throws IOException {
        Path directory = privateDirectory();
        Path name = directory.resolve(UUID.randomUUID() + ".so");
        try {
            Files.createLink(name, source);
        } catch (IOException | UnsupportedOperationException error) {
            Files.copy(source, name);
        }
        try {
            System.load(name.toString());
        } finally {
            // What is loaded stays loaded without its name.
            Files.deleteIfExists(name);
        }
    }

    /** As {@link #unpack}, with what to do about a directory that is missing, full or read-only. */
    private static Path unpackOrRefuse() throws IOException {
        try {
            return unpack();
        } catch (IOException error) {
            boolean isTold = String.valueOf(error.getMessage()).startsWith(LOADING);
            throw isTold ? error : refusal("it cannot be unpacked: " + error);
        }
    }

    /** The library of the jar as a file. */
    private static Path unpack() throws IOException {
        String resource = "/native/" + platform() + "/" + NAME;
        URL place = NativeLibrary.class.getResource(resource);
        if (place == null) {
            throw refusal("the jar has none for " + platform());
        }
        Path directory = privateDirectory();
        Entry entry = entryOfJar(place);
        if (entry != null) {
            Path file = directory.resolve(entry.name());
            if (isOurs(file) && Files.size(file) == entry.bytes()) {
                return file;
            }
        }
        byte[] content;
        try (InputStream stream = place.openStream()) {
            content = stream.readAllBytes();
        }
        Path file = directory.resolve(entry != null ? entry.name() : digest(content) + ".so");
        if (entry == null && isOurs(file) && Arrays.equals(Files.readAllBytes(file), content)) {
            return file;
        }
        Path fresh = directory.resolve(UUID.randomUUID() + ".part");
        try {
            Files.write(fresh, content);
            Files.move(fresh, file, StandardCopyOption.ATOMIC_MOVE);
        } finally {
            Files.deleteIfExists(fresh);
        }
        return file;
    }

    /** What the jar's own list says of the library, without unpacking it. */
    private record Entry(long checksum, long bytes, long packedBytes) {

        /** Name of the unpacked file: another library has another one. */
        String name() {
            return "%08x-%d-%d.so".formatted(checksum, bytes, packedBytes);
        }
    }

    /** The library's entry, or null where it is in no jar that tells. */
    private static Entry entryOfJar(URL place) throws IOException {
        if (!(place.openConnection() instanceof JarURLConnection connection)) {
            return null;
        }
        connection.setUseCaches(false);
        try (JarFile jar = connection.getJarFile()) {
            JarEntry found = jar.getJarEntry(connection.getEntryName());
            boolean tells = found != null && found.getCrc() >= 0 && found.getSize() >= 0;
            return tells
                    ? new Entry(found.getCrc(), found.getSize(), found.getCompressedSize())
                    : null;
        }
    }

    private static String platform() throws IOException {
        String system = System.getProperty("os.name").toLowerCase(Locale.ROOT);
        String machine = System.getProperty("os.arch");
        if (!system.equals("linux")) {
            throw refusal("it runs on Linux, not on " + system);
        }
        return "linux-" + (machine.equals("amd64") ? "x86_64" : machine);
    }

    private static String digest(byte[] content) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(content));
        } catch (NoSuchAlgorithmException error) {
            throw new AssertionError("every Java has SHA-256", error);
        }
    }

    /** A directory that only this user can write to, or an error. */
    private static Path privateDirectory() throws IOException {
        Path base = Path.of(System.getProperty("java.io.tmpdir")).toAbsolutePath();
        Path directory = base.resolve("tidepool-java-" + System.getProperty("user.name"));
        var permissions = PosixFilePermissions.fromString("rwx------");
        try {
            Files.createDirectory(directory, PosixFilePermissions.asFileAttribute(permissions));
        } catch (FileAlreadyExistsException there) {
            if (!isOurs(directory)) {
                // Another user's: a directory of this process alone does as well.
                Path own = Files.createTempDirectory(base, "tidepool-java-");
                own.toFile().deleteOnExit();
                return own;
            }
        }
        return directory;
    }

    /** Whether a file belongs to this user, is no link, and only this user can write to it. */
    private static boolean isOurs(Path path) throws IOException {
        if (!Files.exists(path, LinkOption.NOFOLLOW_LINKS)) {
            return false;
        }
        var there = Files.readAttributes(
                path, PosixFileAttributes.class, LinkOption.NOFOLLOW_LINKS);
        var mine = Files.readAttributes(Path.of("/proc/self"), PosixFileAttributes.class);
        String others = PosixFilePermissions.toString(there.permissions()).substring(3);
        return !there.isSymbolicLink() && there.owner().equals(mine.owner())
                && !others.contains("w");
    }
}
