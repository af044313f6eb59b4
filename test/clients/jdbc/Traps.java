/*
 * What to know about PostgreSQL's JDBC driver, shown; titles as in
 * docs/languages.md.
 */
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Timestamp;
import java.sql.Types;

public class Traps {
  interface Binder {
    void bind(PreparedStatement call) throws SQLException;
  }

  static void trap(String title, boolean holds, Object detail) {
    System.out.println(holds ? "ok - " + title : "not ok - " + title + ": " + detail);
  }

  static Object first(Connection db, String sql, Binder binder) throws SQLException {
    try (PreparedStatement call = db.prepareStatement(sql)) {
      binder.bind(call);
      try (ResultSet row = call.executeQuery()) {
        return row.next() ? row.getObject(1) : null;
      }
    }
  }

  static String errorOf(Connection db, String sql, Binder binder) {
    try {
      first(db, sql, binder);
      return null;
    } catch (SQLException e) {
      return e.getSQLState();
    }
  }

  static Connection connect(String options) throws SQLException {
    return DriverManager.getConnection(System.getenv("JDBC_URL") + options);
  }

  static void parameters(Connection db) throws SQLException {
    String claim = "SELECT outcome FROM idem_claim('trap', 'k', request => ?, lease => '1 s')";
    String error = errorOf(db, claim, call -> call.setString(1, "{}"));
    trap("setString for jsonb, interval or uuid is refused", "42883".equals(error), error);
    Object got = first(db, claim, call -> call.setObject(1, "{}", Types.OTHER));
    trap("... setObject with Types.OTHER is not", "claimed".equals(got), got);
    try (Connection unspecified = connect("&stringtype=unspecified")) {
      error = errorOf(unspecified, claim, call -> call.setString(1, "{}"));
      trap("... nor is setString under stringtype=unspecified", error == null, error);
    }
    error = errorOf(db, "SELECT '{\"a\": 1}'::jsonb ? 'a'", call -> { });
    trap("The operator ? is written ??", error != null, error);
    try (Connection simple = connect("&preferQueryMode=simple")) {
      error = errorOf(simple, "SELECT octet_length(?)", call -> call.setBytes(1, new byte[] {0, 1}));
      trap("setBytes fails under preferQueryMode=simple", "42601".equals(error), error);
    }
  }

  static void results(Connection db) throws SQLException {
    Object got = first(db, "SELECT now()", call -> { });
    trap("getObject makes a Timestamp of timestamptz", got instanceof Timestamp, got);
    try (Statement statement = db.createStatement();
        ResultSet row = statement.executeQuery("SELECT response_code FROM idem_lookup('trap', 'none')")) {
      row.next();
      trap("getInt makes 0 of NULL", row.getInt(1) == 0 && row.wasNull(), row);
    }
  }

  static void transactions(Connection db) throws SQLException {
    String error = errorOf(db, "SELECT outcome FROM idem_claim('trap', 'alone')", call -> { });
    trap("With autocommit a transactional claim ends where it began", "ID002".equals(error), error);
    db.setAutoCommit(false);
    first(db, "SELECT idem_once('trap', 'swallowed')", call -> { });
    errorOf(db, "SELECT 1 / 0", call -> { });
    db.commit();
    db.setAutoCommit(true);
    Object got = first(db, "SELECT outcome FROM idem_lookup('trap', 'swallowed')", call -> { });
    trap("COMMIT says nothing after a swallowed error", "absent".equals(got), got);
  }

  static void prepared(Connection db) throws SQLException {
    StringBuilder counts = new StringBuilder();
    try (PreparedStatement call = db.prepareStatement("SELECT outcome FROM idem_lookup('trap', ?)")) {
      for (int i = 0; i < 5; i++) {
        call.setString(1, "k");
        call.executeQuery().close();
        counts.append(first(db, "SELECT count(*) FROM pg_prepared_statements"
            + " WHERE statement LIKE 'SELECT outcome %'", c -> { }));
      }
    }
    trap("What is run often becomes a prepared statement", counts.toString().equals("00001"), counts);
  }

  public static void main(String[] arguments) throws SQLException {
    try (Connection db = connect("")) {
      parameters(db);
      results(db);
      transactions(db);
      prepared(db);
    }
  }
}
