/*
 * Checksums of files: those that HDFS gives for the same bytes, types, ways to combine and blocks
 * of 1 MiB. The table was written down from a NameNode and a DataNode of Hadoop 3.4.2.
 */
package io.tidepool.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;

import java.io.IOException;
import java.net.URI;
import java.util.HexFormat;
import java.util.Random;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileChecksum;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.junit.Test;

/** Checksums as in HDFS. */
public class TestChecksums {

    private static final long SEED = 7;
    private static final Path FILE = new Path("/checksum");

    /** Bytes of the file, bytes summed, type, way to combine; name and bytes of the sum. */
    private static final String[][] OF_HDFS = {
        {"0", "0", "CRC32C", "MD5MD5CRC",
            "MD5-of-0MD5-of-0CRC32",
            "00000000000000000000000070bc8f4b72a86921468bf8e8441dce5100000000"},
        {"0", "0", "CRC32C", "COMPOSITE_CRC",
            "MD5-of-0MD5-of-0CRC32",
            "00000000000000000000000070bc8f4b72a86921468bf8e8441dce5100000000"},
        {"0", "0", "CRC32", "MD5MD5CRC",
            "MD5-of-0MD5-of-0CRC32",
            "00000000000000000000000070bc8f4b72a86921468bf8e8441dce5100000000"},
        {"0", "0", "CRC32", "COMPOSITE_CRC",
            "MD5-of-0MD5-of-0CRC32",
            "00000000000000000000000070bc8f4b72a86921468bf8e8441dce5100000000"},
        {"512", "512", "CRC32C", "MD5MD5CRC",
            "MD5-of-0MD5-of-512CRC32C",
            "0000020000000000000000009a8bc9b198f21ee29f6ffce4a07434ed00000000"},
        {"512", "512", "CRC32C", "COMPOSITE_CRC",
            "COMPOSITE-CRC32C",
            "00836bc1"},
        {"512", "512", "CRC32", "MD5MD5CRC",
            "MD5-of-0MD5-of-512CRC32",
            "000002000000000000000000534612ec0d9e0c4adcd19a036ca8af9c00000000"},
        {"512", "512", "CRC32", "COMPOSITE_CRC",
            "COMPOSITE-CRC32",
            "324971a7"},
        {"1048577", "1048577", "CRC32C", "MD5MD5CRC",
            "MD5-of-2048MD5-of-512CRC32C",
            "000002000000000000000800d9b3d0d67cdd0f417fc9cf639709232700000000"},
        {"1048577", "1048577", "CRC32C", "COMPOSITE_CRC",
            "COMPOSITE-CRC32C",
            "33b66152"},
        {"1048577", "1048577", "CRC32", "MD5MD5CRC",
            "MD5-of-2048MD5-of-512CRC32",
            "00000200000000000000080003466c1b8df926a8785d2371ec30fe2300000000"},
        {"1048577", "1048577", "CRC32", "COMPOSITE_CRC",
            "COMPOSITE-CRC32",
            "5211ec5f"},
        {"3500000", "3500000", "CRC32C", "MD5MD5CRC",
            "MD5-of-2048MD5-of-512CRC32C",
            "0000020000000000000008003d14e2e4533b669de9b6d3da5505ddb000000000"},
        {"3500000", "3500000", "CRC32C", "COMPOSITE_CRC",
            "COMPOSITE-CRC32C",
            "13c168a1"},
        {"3500000", "3500000", "CRC32", "MD5MD5CRC",
            "MD5-of-2048MD5-of-512CRC32",
            "0000020000000000000008005b3b2825c13503d9857a01a7511f3b8900000000"},
        {"3500000", "3500000", "CRC32", "COMPOSITE_CRC",
            "COMPOSITE-CRC32",
            "87e625a0"},
        {"5000000", "5000000", "CRC32C", "MD5MD5CRC",
            "MD5-of-2048MD5-of-512CRC32C",
            "000002000000000000000800e00a8e0fc755198514bb57887e75f28f00000000"},
        {"5000000", "2000000", "CRC32C", "MD5MD5CRC",
            "MD5-of-2048MD5-of-512CRC32C",
            "000002000000000000000800a2d2f4ee918baf8cd7876accd002507300000000"},
        {"5000000", "5000000", "CRC32C", "COMPOSITE_CRC",
            "COMPOSITE-CRC32C",
            "bdb9a546"},
        {"5000000", "2000000", "CRC32C", "COMPOSITE_CRC",
            "COMPOSITE-CRC32C",
            "bb52a567"},
        {"5000000", "5000000", "CRC32", "MD5MD5CRC",
            "MD5-of-2048MD5-of-512CRC32",
            "000002000000000000000800e6972f205464cc69f21be1122e8e860000000000"},
        {"5000000", "2000000", "CRC32", "MD5MD5CRC",
            "MD5-of-2048MD5-of-512CRC32",
            "00000200000000000000080035f1fa7c39314d4bcf4c741b26dab2e600000000"},
        {"5000000", "5000000", "CRC32", "COMPOSITE_CRC",
            "COMPOSITE-CRC32",
            "16aa93a6"},
        {"5000000", "2000000", "CRC32", "COMPOSITE_CRC",
            "COMPOSITE-CRC32",
            "f4063132"},
    };

    private static FileSystem system(String type, String mode) throws IOException {
        ContractNode.start();
        Configuration configuration = new Configuration();
        configuration.set(TideOptions.SPLIT_BYTES, "1MiB");
        configuration.set("dfs.checksum.type", type);
        configuration.set("dfs.checksum.combine.mode", mode);
        return FileSystem.newInstance(URI.create("tide:///"), configuration);
    }

    @Test
    public void sumsAreThoseOfHdfs() throws IOException {
        for (String[] row : OF_HDFS) {
            byte[] bytes = new byte[Integer.parseInt(row[0])];
            new Random(SEED).nextBytes(bytes);
            try (FileSystem system = system(row[2], row[3])) {
                try (FSDataOutputStream out = system.create(FILE)) {
                    out.write(bytes);
                }
                FileChecksum sum = system.getFileChecksum(FILE, Long.parseLong(row[1]));
                String what = String.join(" ", row);
                assertEquals(what, row[4], sum.getAlgorithmName());
                assertEquals(what, row[5], HexFormat.of().formatHex(sum.getBytes()));
                system.delete(FILE, false);
            }
        }
    }

    @Test
    public void settingsThatSumNothingAreNamed() throws IOException {
        try (FileSystem system = system("CRC32C", "SUM")) {
            system.create(FILE).close();
            IOException error =
                    assertThrows(IOException.class, () -> system.getFileChecksum(FILE));
            assertEquals(true, error.getMessage().contains("COMPOSITE_CRC"));
            system.delete(FILE, false);
        }
    }
}
