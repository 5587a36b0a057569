/*
 * A file system for another user than that of the process is refused, unless the options say that
 * the user of the process may do it; homes are where the options say.
 */
package io.tidepool.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.security.PrivilegedExceptionAction;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.security.AccessControlException;
import org.apache.hadoop.security.UserGroupInformation;
import org.junit.Test;

public class TestOtherUsers {

    private static final URI ROOT = URI.create("tide:///");

    private static Configuration configuration(TestNode node) {
        Configuration configuration = new Configuration();
        node.options().forEach(configuration::set);
        return configuration;
    }

    private static String home(UserGroupInformation user, Configuration configuration)
            throws Exception {
        PrivilegedExceptionAction<String> ask = () -> {
            try (FileSystem system = FileSystem.newInstance(ROOT, configuration)) {
                return system.getHomeDirectory().toUri().getPath();
            }
        };
        return user.doAs(ask);
    }

    @Test
    public void othersAreRefusedUnlessTheOptionsSayOtherwise() throws Exception {
        UserGroupInformation other = UserGroupInformation.createRemoteUser("alice");
        try (TestNode node = TestNode.absent()) {
            Configuration configuration = configuration(node);
            var error = assertThrows(
                    AccessControlException.class, () -> home(other, configuration));
            assertTrue(error.toString(), error.getMessage().contains("alice")
                    && error.getMessage().contains(TideOptions.OTHER_USERS));
            for (String how : new String[] {"warn", "allow"}) {
                configuration.set(TideOptions.OTHER_USERS, how);
                assertEquals("/user/alice", home(other, configuration));
            }
            configuration.set(TideOptions.OTHER_USERS, "perhaps");
            assertThrows(IOException.class, () -> home(other, configuration));
        }
    }

    private static FileSystem systemOf(UserGroupInformation user, Configuration configuration)
            throws Exception {
        PrivilegedExceptionAction<FileSystem> get = () -> FileSystem.get(ROOT, configuration);
        return user.doAs(get);
    }

    @Test
    public void manyOthersShareAConnectionAndEachClosesHisOwn() throws Exception {
        Path path = new Path("/kept");
        List<UserGroupInformation> users = new ArrayList<>();
        List<FileSystem> systems = new ArrayList<>();
        try (TestNode node = TestNode.start("64MiB")) {
            Configuration configuration = configuration(node);
            configuration.set(TideOptions.OTHER_USERS, "allow");
            int before = node.clients();
            for (int number = 0; number < 40; number++) {
                users.add(UserGroupInformation.createRemoteUser("user" + number));
                systems.add(systemOf(users.get(number), configuration));
                assertFalse(systems.get(number).exists(path));
            }
            assertEquals(before + 1, node.clients());
            FSDataOutputStream out = systems.get(0).create(path);
            out.write(1);
            for (int number = 1; number < 40; number++) {
                FileSystem system = systems.get(number);
                FileSystem.closeAllForUGI(users.get(number));
                assertThrows(IOException.class, () -> system.exists(path));
            }
            assertEquals("gathered until its own user closes", 0, Files.size(node.pfs()
                    .resolve("kept")));
            out.write(2);
            out.close();
            assertTrue(systems.get(0).exists(path));
            assertEquals(2, Files.size(node.pfs().resolve("kept")));
            FileSystem.closeAllForUGI(users.get(0));
            for (int round = 0; round < 200 && node.clients() > before; round++) {
                Thread.sleep(20);
            }
            assertEquals("the last ends the connection", before, node.clients());
        }
    }

    @Test
    public void homesAreWhereTheOptionsSay() throws Exception {
        UserGroupInformation own = UserGroupInformation.getCurrentUser();
        try (TestNode node = TestNode.absent()) {
            Configuration configuration = configuration(node);
            String name = own.getShortUserName();
            assertEquals("/user/" + name, home(own, configuration));
            configuration.set(TideOptions.HOME_PREFIX, "/scratch/homes");
            assertEquals("/scratch/homes/" + name, home(own, configuration));
            try (FileSystem system = FileSystem.newInstance(ROOT, configuration)) {
                assertEquals("/scratch/homes/" + name + "/.Trash",
                        system.getTrashRoot(new Path("/file")).toUri().getPath());
            }
        }
    }
}
