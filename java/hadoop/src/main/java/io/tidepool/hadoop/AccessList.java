/*
 * Access control lists of the parallel file system, as the kernel keeps them in attributes, and the
 * rules by which Hadoop changes them. What the lists mean is decided by the parallel file system.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Objects;
import java.util.function.Predicate;
import org.apache.hadoop.fs.PathIOException;
import org.apache.hadoop.fs.permission.AclEntry;
import org.apache.hadoop.fs.permission.AclEntryScope;
import org.apache.hadoop.fs.permission.AclEntryType;
import org.apache.hadoop.fs.permission.AclStatus;
import org.apache.hadoop.fs.permission.FsAction;
import org.apache.hadoop.fs.permission.FsPermission;

final class AccessList {

    /** The attribute that holds the list of a name. */
    static final String ATTRIBUTE = "system.posix_acl_access";

    private static final String ACCESS = ATTRIBUTE;
    private static final String DEFAULT = "system.posix_acl_default";
    private static final int VERSION = 2;
    private static final int ENTRY_BYTES = 8;
    private static final int UNDEFINED = -1;

    // Tags of entries, as the kernel has them.
    private static final int USER_OBJ = 1;
    private static final int USER = 2;
    private static final int GROUP_OBJ = 4;
    private static final int GROUP = 8;
    private static final int MASK = 16;
    private static final int OTHER = 32;

    /** The order in which the kernel wants entries. */
    private static final Comparator<AclEntry> ORDER = Comparator
            .comparing((AclEntry entry) -> entry.getScope())
            .thenComparingInt(AccessList::tag)
            .thenComparing(entry -> Objects.toString(entry.getName(), ""));

    private final NativeNames names;
    private final String path;
    private final List<AclEntry> entries = new ArrayList<>();

    private AccessList(NativeNames names, String path) {
        this.names = names;
        this.path = path;
    }

    /** Whether a name has more than its mode. */
    static boolean exists(NativeNames names, String path) throws IOException {
        for (String name : names.attributes(path)) {
            if (name.equals(ACCESS) || name.equals(DEFAULT)) {
                return true;
            }
        }
        return false;
    }

    /** The lists of a name; what is not in a list is in its mode. */
    static AccessList of(NativeNames names, TideFileStatus status) throws IOException {
        AccessList list = new AccessList(names, status.getPath().toUri().getPath());
        list.read(ACCESS, AclEntryScope.ACCESS);
        if (list.entries.isEmpty()) {
            FsPermission mode = status.getPermission();
            list.put(entry(AclEntryScope.ACCESS, AclEntryType.USER, null, mode.getUserAction()));
            list.put(entry(AclEntryScope.ACCESS, AclEntryType.GROUP, null,
                    mode.getGroupAction()));
            list.put(entry(AclEntryScope.ACCESS, AclEntryType.OTHER, null,
                    mode.getOtherAction()));
        }
        if (status.isDirectory()) {
            list.read(DEFAULT, AclEntryScope.DEFAULT);
        }
        return list;
    }

    private void read(String attribute, AclEntryScope scope) throws IOException {
        byte[] value = names.attribute(path, attribute);
        if (value == null || value.length < Integer.BYTES) {
            return;
        }
        ByteBuffer bytes = ByteBuffer.wrap(value).order(ByteOrder.LITTLE_ENDIAN);
        if (bytes.getInt() != VERSION) {
            throw new PathIOException(path, "its access control list is of another version");
        }
        while (bytes.remaining() >= ENTRY_BYTES) {
            int tag = bytes.getShort();
            FsAction action = FsAction.values()[bytes.getShort() & 7];
            int id = bytes.getInt();
            AclEntryType type = switch (tag) {
                case USER_OBJ, USER -> AclEntryType.USER;
                case GROUP_OBJ, GROUP -> AclEntryType.GROUP;
                case MASK -> AclEntryType.MASK;
                default -> AclEntryType.OTHER;
            };
            String name = tag == USER ? NativeNames.user(id)
                    : tag == GROUP ? NativeNames.group(id) : null;
            entries.add(entry(scope, type, name, action));
        }
    }

    private static AclEntry entry(
            AclEntryScope scope, AclEntryType type, String name, FsAction action) {
        AclEntry.Builder builder = new AclEntry.Builder().setScope(scope).setType(type);
        return builder.setName(name).setPermission(action).build();
    }

    private static int tag(AclEntry entry) {
        boolean named = entry.getName() != null;
        return switch (entry.getType()) {
            case USER -> named ? USER : USER_OBJ;
            case GROUP -> named ? GROUP : GROUP_OBJ;
            case MASK -> MASK;
            case OTHER -> OTHER;
        };
    }

    private static Predicate<AclEntry> sameAs(AclEntry other) {
        return entry -> entry.getScope() == other.getScope() && entry.getType() == other.getType()
                && Objects.equals(entry.getName(), other.getName());
    }

    private void put(AclEntry entry) {
        entries.removeIf(sameAs(entry));
        entries.add(entry);
    }

    /** Adds entries, or replaces those of the same user or group. */
    void modify(List<AclEntry> changes) throws IOException {
        changes.forEach(this::put);
        complete(changes);
    }

    /** Removes the entries of these users and groups. */
    void remove(List<AclEntry> gone) throws IOException {
        gone.forEach(entry -> entries.removeIf(sameAs(entry)));
        complete(gone);
    }

    /** Removes what directories hand on. */
    void removeDefault() throws IOException {
        entries.removeIf(entry -> entry.getScope() == AclEntryScope.DEFAULT);
    }

    /** Leaves the mode alone. */
    void removeAll() throws IOException {
        removeDefault();
        entries.removeIf(entry -> entry.getName() != null
                || entry.getType() == AclEntryType.MASK);
    }

    /** Sets the lists anew; a scope that is not given stays. */
    void set(List<AclEntry> anew) throws IOException {
        for (AclEntryScope scope : AclEntryScope.values()) {
            if (anew.stream().anyMatch(entry -> entry.getScope() == scope)) {
                entries.removeIf(entry -> entry.getScope() == scope);
            }
        }
        anew.forEach(this::put);
        complete(anew);
    }

    /** Adds what a list must have, and reckons masks that were not given. */
    private void complete(List<AclEntry> given) throws IOException {
        for (AclEntryScope scope : AclEntryScope.values()) {
            List<AclEntry> list = of(scope);
            if (list.isEmpty()) {
                continue;
            }
            if (scope == AclEntryScope.DEFAULT) {
                of(AclEntryScope.ACCESS).stream()
                        .filter(entry -> entry.getName() == null
                                && entry.getType() != AclEntryType.MASK)
                        .map(entry -> entry(scope, entry.getType(), null, entry.getPermission()))
                        .filter(entry -> list.stream().noneMatch(sameAs(entry)))
                        .forEach(this::put);
            }
            boolean touched = given.stream().anyMatch(entry -> entry.getScope() == scope);
            Predicate<AclEntry> isMask =
                    entry -> entry.getScope() == scope && entry.getType() == AclEntryType.MASK;
            boolean named = of(scope).stream().anyMatch(entry -> entry.getName() != null);
            if (touched && given.stream().noneMatch(isMask)) {
                entries.removeIf(isMask);
                if (named) {
                    put(entry(scope, AclEntryType.MASK, null, groupClass(scope)));
                }
            }
        }
        check();
    }

    private FsAction groupClass(AclEntryScope scope) {
        FsAction all = FsAction.NONE;
        for (AclEntry entry : of(scope)) {
            if (entry.getName() != null || entry.getType() == AclEntryType.GROUP) {
                all = all.or(entry.getPermission());
            }
        }
        return all;
    }

    private void check() throws IOException {
        for (AclEntryType type : List.of(
                AclEntryType.USER, AclEntryType.GROUP, AclEntryType.OTHER)) {
            AclEntry needed = entry(AclEntryScope.ACCESS, type, null, null);
            if (entries.stream().noneMatch(sameAs(needed))) {
                throw new PathIOException(path, "an access control list without an entry for "
                        + type.toString().toLowerCase(java.util.Locale.ROOT)
                        + ":: (give entries for user, group and other)");
            }
        }
    }

    private List<AclEntry> of(AclEntryScope scope) {
        return entries.stream().filter(entry -> entry.getScope() == scope).sorted(ORDER).toList();
    }

    private boolean isMinimal() {
        return of(AclEntryScope.ACCESS).stream().allMatch(entry -> entry.getName() == null
                && entry.getType() != AclEntryType.MASK);
    }

    private FsAction action(AclEntryType type) {
        AclEntry wanted = entry(AclEntryScope.ACCESS, type, null, null);
        return entries.stream().filter(sameAs(wanted)).findFirst().orElseThrow().getPermission();
    }

    /** Writes the lists back; one that says no more than the mode becomes the mode. */
    void write(TideFileStatus status) throws IOException {
        List<AclEntry> defaults = of(AclEntryScope.DEFAULT);
        if (!defaults.isEmpty() && !status.isDirectory()) {
            throw new PathIOException(path, "only directories hand access control lists on");
        }
        if (isMinimal()) {
            if (names.attribute(path, ACCESS) != null) {
                names.setAttribute(path, ACCESS, null, NativeNames.SET);
            }
            FsPermission mode = new FsPermission(action(AclEntryType.USER),
                    action(AclEntryType.GROUP), action(AclEntryType.OTHER),
                    status.getPermission().getStickyBit());
            names.setMode(path, mode.toShort());
        } else {
            names.setAttribute(path, ACCESS, encode(of(AclEntryScope.ACCESS)), NativeNames.SET);
        }
        if (!defaults.isEmpty()) {
            names.setAttribute(path, DEFAULT, encode(defaults), NativeNames.SET);
        } else if (status.isDirectory() && names.attribute(path, DEFAULT) != null) {
            names.setAttribute(path, DEFAULT, null, NativeNames.SET);
        }
    }

    private static byte[] encode(List<AclEntry> list) throws IOException {
        ByteBuffer bytes = ByteBuffer.allocate(Integer.BYTES + list.size() * ENTRY_BYTES);
        bytes.order(ByteOrder.LITTLE_ENDIAN).putInt(VERSION);
        for (AclEntry entry : list) {
            int tag = tag(entry);
            long id = UNDEFINED;
            if (tag == USER || tag == GROUP) {
                id = NativeNames.number(entry.getName(), tag == GROUP);
            }
            bytes.putShort((short) tag).putShort((short) entry.getPermission().ordinal());
            bytes.putInt((int) id);
        }
        return bytes.array();
    }

    /** As Hadoop shows it: without what the mode says already. */
    AclStatus status(TideFileStatus status) {
        AclStatus.Builder shown = new AclStatus.Builder().owner(status.getOwner())
                .group(status.getGroup()).stickyBit(status.getPermission().getStickyBit())
                .setPermission(status.getPermission());
        if (!isMinimal()) {
            of(AclEntryScope.ACCESS).stream()
                    .filter(entry -> entry.getName() != null
                            || entry.getType() == AclEntryType.GROUP)
                    .forEach(shown::addEntry);
        }
        of(AclEntryScope.DEFAULT).forEach(shown::addEntry);
        return shown.build();
    }
}
