/*
 * The library loads where it belongs and says what is wrong elsewhere; whatever goes wrong inside
 * becomes an exception.
 */
package io.tidepool.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNotSame;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.MalformedURLException;
import java.net.URI;
import java.net.URL;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.List;
import java.util.jar.JarEntry;
import java.util.jar.JarOutputStream;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.Assume;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

public class TestNativeLibrary {

    private static final String ENTRY = "native/linux-"
            + System.getProperty("os.arch").replace("amd64", "x86_64") + "/libtidepool_java.so";

    @Rule public TemporaryFolder folder = new TemporaryFolder();

    /** Has classes of its own of ours, as two applications in one JVM have. */
    private static final class OwnClasses extends ClassLoader {

        /** Where the native library is looked for; null is where it always is. */
        private final Path jar;

        /** A class that cannot be loaded, or null. */
        private final Class<?> missing;

        OwnClasses(Path jar) {
            this(jar, null);
        }

        OwnClasses(Path jar, Class<?> missing) {
            super(TestNativeLibrary.class.getClassLoader());
            this.jar = jar;
            this.missing = missing;
        }

        @Override
        public URL getResource(String name) {
            if (jar == null || !name.startsWith("native/")) {
                return super.getResource(name);
            }
            try {
                return URI.create("jar:" + jar.toUri() + "!/" + name).toURL();
            } catch (MalformedURLException error) {
                throw new AssertionError(error);
            }
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            if (missing != null && missing.getName().equals(name)) {
                throw new ClassNotFoundException(name);
            }
            if (!name.startsWith("io.tidepool.")) {
                return super.loadClass(name, resolve);
            }
            Class<?> loaded = findLoadedClass(name);
            if (loaded != null) {
                return loaded;
            }
            String file = name.replace('.', '/') + ".class";
            try (InputStream stream = getParent().getResourceAsStream(file)) {
                byte[] bytes = stream.readAllBytes();
                return defineClass(name, bytes, 0, bytes.length);
            } catch (IOException error) {
                throw new ClassNotFoundException(name, error);
            }
        }
    }

    private static void loadInOwnClasses() throws Exception {
        loadFrom(null);
    }

    private static void loadFrom(Path jar) throws Exception {
        Class<?> library = new OwnClasses(jar).loadClass(NativeLibrary.class.getName());
        assertNotSame(NativeLibrary.class, library);
        Method load = library.getDeclaredMethod("load");
        load.setAccessible(true);
        try {
            load.invoke(null);
        } catch (InvocationTargetException error) {
            throw (Exception) error.getCause();
        }
    }

    private static String messageWithLibrary(Path path) {
        System.setProperty(NativeLibrary.PATH_PROPERTY, path.toString());
        try {
            return assertThrows(IOException.class, TestNativeLibrary::loadInOwnClasses)
                    .getMessage();
        } finally {
            System.clearProperty(NativeLibrary.PATH_PROPERTY);
        }
    }

    @Test
    public void everyClassLoaderGetsTheLibrary() throws Exception {
        NativeLibrary.load();
        for (int round = 0; round < 3; round++) {
            loadInOwnClasses();
        }
    }

    @Test
    public void aPlaceThatCannotBeUnpackedToIsNamedWithTheRemedy() throws Exception {
        String missing = folder.getRoot().toPath().resolve("missing").toString();
        String before = System.setProperty("java.io.tmpdir", missing);
        try {
            String text = assertThrows(IOException.class, () -> loadFrom(null)).getMessage();
            assertTrue(text, text.startsWith("while loading the native library")
                    && text.contains(missing) && text.contains("-Djava.io.tmpdir"));
        } finally {
            System.setProperty("java.io.tmpdir", before);
        }
    }

    /** The guide says which releases of Linux this is; it must not become a later one unseen. */
    @Test
    public void noLaterLibraryOfTheSystemIsNeededThanTheGuideSays() throws Exception {
        Assume.assumeTrue("no readelf", Files.isExecutable(Path.of("/usr/bin/readelf")));
        Path ours = folder.getRoot().toPath().resolve("needs.so");
        try (InputStream stream = NativeLibrary.class.getResourceAsStream("/" + ENTRY)) {
            Files.copy(stream, ours);
        }
        Process reader = new ProcessBuilder("readelf", "-V", ours.toString()).start();
        String text = new String(reader.getInputStream().readAllBytes());
        int highest = Pattern.compile("GLIBC_2\\.(\\d+)").matcher(text).results()
                .mapToInt(found -> Integer.parseInt(found.group(1))).max().orElseThrow();
        assertTrue("glibc 2." + highest, highest <= 34);
    }

    @Test
    public void anErrorThatCannotBeMadeIsAnErrorStill() throws Exception {
        var classes = new OwnClasses(null, NativeFailure.class);
        Class<?> library = classes.loadClass(NativeLibrary.class.getName());
        Method load = library.getDeclaredMethod("load");
        load.setAccessible(true);
        load.invoke(null);
        Method panic = library.getDeclaredMethod("panic", String.class);
        panic.setAccessible(true);
        var thrown = assertThrows(
                InvocationTargetException.class, () -> panic.invoke(null, "why it failed"));
        assertEquals(IOException.class, thrown.getCause().getClass());
        String text = thrown.getCause().getMessage();
        assertTrue(text, text.contains("why it failed"));
    }

    @Test
    public void aJarIsUnpackedOnceAndAnotherIsNotTakenForIt() throws Exception {
        Path temporary = folder.newFolder().toPath();
        String before = System.setProperty("java.io.tmpdir", temporary.toString());
        try {
            Path ours = folder.getRoot().toPath().resolve("ours.so");
            try (InputStream stream = NativeLibrary.class.getResourceAsStream("/" + ENTRY)) {
                Files.copy(stream, ours);
            }
            Path jar = jarOf(ours);
            loadFrom(jar);
            Path unpacked = onlyLibrary(temporary);
            assertEquals(-1, Files.mismatch(ours, unpacked));
            Object identity = Files.readAttributes(unpacked, BasicFileAttributes.class).fileKey();
            loadFrom(jar);
            assertEquals(unpacked, onlyLibrary(temporary));
            assertEquals("it is not written again", identity,
                    Files.readAttributes(unpacked, BasicFileAttributes.class).fileKey());
            // A new file in its place: this JVM runs what is in the old one.
            Files.delete(unpacked);
            Files.write(unpacked, new byte[] {1, 2, 3});
            loadFrom(jar);
            assertEquals("a broken one is replaced", -1, Files.mismatch(ours, unpacked));
            Path other = compile("int Java_io_tidepool_hadoop_NativeLibrary_abi()"
                    + "{ return 12345; }");
            var error = assertThrows(IOException.class, () -> loadFrom(jarOf(other)));
            assertTrue(error.getMessage(), error.getMessage().contains("12345"));
        } finally {
            System.setProperty("java.io.tmpdir", before);
        }
    }

    private Path jarOf(Path library) throws IOException {
        Path jar = folder.getRoot().toPath().resolve(System.nanoTime() + ".jar");
        try (var stream = new JarOutputStream(Files.newOutputStream(jar))) {
            stream.putNextEntry(new JarEntry(ENTRY));
            Files.copy(library, stream);
            stream.closeEntry();
        }
        return jar;
    }

    private static Path onlyLibrary(Path temporary) throws IOException {
        try (Stream<Path> all = Files.walk(temporary)) {
            List<Path> libraries = all.filter(path -> path.toString().endsWith(".so")).toList();
            assertEquals(libraries.toString(), 1, libraries.size());
            return libraries.get(0);
        }
    }

    @Test
    public void aPanicBecomesAnException() throws IOException {
        NativeLibrary.load();
        for (int round = 0; round < 3; round++) {
            var error = assertThrows(IOException.class, () -> NativeLibrary.panic("as told"));
            assertTrue(error.getMessage(), error.getMessage().contains("as told"));
            assertTrue(error.getMessage(), error.getMessage().contains("bug of Tidepool"));
        }
    }

    @Test
    public void aMissingLibraryIsNamedWithTheRemedy() {
        Path missing = folder.getRoot().toPath().resolve("none.so");
        String message = messageWithLibrary(missing);
        assertTrue(message, message.contains(missing + " is no file"));
        assertTrue(message, message.contains(NativeLibrary.PATH_PROPERTY));
    }

    @Test
    public void anotherReleaseOfTheLibraryIsRefusedAndBothAreNamed() throws Exception {
        Path library = compile("int Java_io_tidepool_hadoop_NativeLibrary_abi()"
                + "{ return 12345; }");
        String message = messageWithLibrary(library);
        assertTrue(message, message.contains("12345") && message.contains(library.toString()));
        assertTrue(message, message.contains("version " + TideOptions.ABI));
    }

    @Test
    public void anyOtherLibraryIsRefused() throws Exception {
        Path library = compile("int other() { return 0; }");
        String message = messageWithLibrary(library);
        assertTrue(message, message.contains("is not the native library of Tidepool"));
        Path text = Files.writeString(folder.newFile("text.so").toPath(), "no library");
        assertTrue(messageWithLibrary(text).contains(text.toString()));
    }

    private Path compile(String code) throws Exception {
        Path source = Files.writeString(folder.newFile().toPath(), code);
        Path library = folder.getRoot().toPath().resolve(System.nanoTime() + ".so");
        Process compiler = new ProcessBuilder(
                "cc", "-shared", "-fPIC", "-x", "c", source.toString(), "-o", library.toString())
                .inheritIO().start();
        assertEquals(0, compiler.waitFor());
        return library;
    }
}
