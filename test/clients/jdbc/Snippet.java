import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.UUID;

public class Snippet {
  record Claim(String outcome, UUID token, Integer code, String body) {
    Claim finished(String answer) {
      return new Claim(outcome, token, 201, answer);
    }

    @Override
    public String toString() {
      return switch (outcome) {
        case "claimed", "replayed" -> code + " " + body;
        case "mismatch" -> "422 mismatch";
        default -> "409 " + outcome;
      };
    }
  }

  static Claim claim(Connection db, String options, String scope, String key, String user, String request)
      throws SQLException {
    String sql = "SELECT outcome, token, response_code, response_body"
        + " FROM idem_claim(?, ?, ?, request => ?::jsonb, " + options + ")";
    try (PreparedStatement call = db.prepareStatement(sql)) {
      call.setString(1, scope);
      call.setString(2, key);
      call.setString(3, user);
      call.setString(4, request);
      try (ResultSet row = call.executeQuery()) {
        row.next();
        return new Claim(row.getString(1), row.getObject(2, UUID.class), row.getObject(3, Integer.class),
            row.getString(4));
      }
    }
  }

  static void run(Connection db, String sql, Object... arguments) throws SQLException {
    try (PreparedStatement call = db.prepareStatement(sql)) {
      for (int i = 0; i < arguments.length; i++) {
        call.setObject(i + 1, arguments[i]);
      }
      call.execute();
    }
  }

  static Claim createOrder(Connection db, String key, String user, String item) throws SQLException {
    db.setAutoCommit(false);
    try {
      Claim claim = claim(db, "wait => '1 s'", "create_order", key, user, "{\"item\": \"" + item + "\"}");
      if (claim.outcome().equals("claimed")) {
        try (PreparedStatement insert = db.prepareStatement(
            "INSERT INTO orders (customer, item) VALUES (?, ?) RETURNING id")) {
          insert.setString(1, user);
          insert.setString(2, item);
          ResultSet order = insert.executeQuery();
          order.next();
          claim = claim.finished("{\"order\": " + order.getLong(1) + "}");
        }
        run(db, "SELECT idem_finish('create_order', ?, ?, response_code => ?, response_body => ?)",
            key, user, claim.code(), claim.body());
      }
      db.commit();
      return claim;
    } catch (SQLException | RuntimeException e) {
      db.rollback();
      throw e;
    } finally {
      db.setAutoCommit(true);
    }
  }

  static Claim charge(Connection db, String key, String user, int amount) throws SQLException {
    Claim claim = claim(db, "lease => '60 s'", "charge", key, user, "{\"amount\": " + amount + "}");
    if (!claim.outcome().equals("claimed")) {
      return claim;
    }
    String reference = askProvider(amount); // outside of any transaction
    claim = claim.finished("{\"charge\":\"" + reference + "\"}");
    db.setAutoCommit(false);
    try {
      run(db, "INSERT INTO payments VALUES (?, ?, ?)", key, reference, amount);
      run(db, "SELECT idem_finish('charge', ?, ?, token => ?, response_code => ?, response_body => ?)",
          key, user, claim.token(), claim.code(), claim.body());
      db.commit();
      return claim;
    } catch (SQLException | RuntimeException e) {
      db.rollback();
      throw e;
    } finally {
      db.setAutoCommit(true);
    }
  }

  static String askProvider(int amount) {
    return "ch_" + amount;
  }

  public static void main(String[] arguments) throws SQLException {
    try (Connection db = DriverManager.getConnection(System.getenv("JDBC_URL"))) {
      for (int i = 0; i < 2; i++) {
        System.out.println(createOrder(db, "k-1", "42", "tea"));
        System.out.println(charge(db, "k-2", "42", 500));
      }
    }
  }
}
